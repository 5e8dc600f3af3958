"""Solvers give every bit of their references."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import RungeKutta4ODESolver

from antiphon_services.flow.euler import EulerSteps
from antiphon_services.flow.midpoint import MidpointSteps
from antiphon_services.flow.runge_kutta import RungeKuttaSteps
from antiphon_services.flow.work import Velocity, Work, run_to_end

Slope = Callable[[Tensor, Tensor], Tensor]


def slope(time: Tensor, value: Tensor) -> Tensor:
    """A velocity that neither time nor value leaves alone."""
    return torch.sin(3 * time + value) - 0.7 * value


def velocity_of(times: Tensor) -> Velocity:
    def velocity(evaluation: int, value: Tensor) -> Work[Tensor]:
        yield len(value)
        return slope(times[evaluation], value)

    return velocity


def euler(points: Tensor, value: Tensor) -> Tensor:
    """`solve_euler` of CosyVoice, without guidance."""
    time, width = points[0], points[1] - points[0]
    for step in range(1, len(points)):
        value = value + width * slope(time, value)
        time = time + width
        if step < len(points) - 1:
            width = points[step + 1] - time
    return value


@pytest.fixture
def start() -> Tensor:
    return torch.randn(50, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("steps", [1, 2, 10])
def test_euler_is_that_of_cosyvoice(steps: int, start: Tensor) -> None:
    solver = EulerSteps.cosine(steps)
    points = 1 - torch.cos(torch.linspace(0, 1, steps + 1) * 0.5 * torch.pi)
    found = run_to_end(solver.solve(velocity_of(solver.times), start))
    assert torch.equal(found, euler(points, start))


def pruned_points(steps: int) -> Tensor:
    """As `CFM.sample` of Ming-omni-tts makes them, with a sway of -1."""
    chosen = {10: [0, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32], 5: [0, 2, 4, 8, 16, 32]}.get(steps)
    points = torch.linspace(0, 1, steps + 1)
    if chosen is not None:
        points = 1 / 32 * torch.tensor(chosen, dtype=torch.float32)
    return points + -1.0 * (torch.cos(torch.pi / 2 * points) - 1 + points)


@pytest.mark.parametrize("steps", [1, 4, 5, 10])
def test_pruned_steps_are_those_of_ming(steps: int, start: Tensor) -> None:
    """Counts without points of their own among them."""
    solver, points = EulerSteps.pruned(steps), pruned_points(steps)
    assert torch.equal(solver.times, points[:-1])
    found = run_to_end(solver.solve(velocity_of(solver.times), start))
    value = start
    for time, after in itertools.pairwise(points):
        value = value + (after - time) * slope(time, value)
    assert torch.equal(found, value)
    assert sum(solver.widths) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("points", [[0.0, 1.0], [0.0, 0.1, 0.5, 0.55, 1.0]], ids=len)
def test_runge_kutta_is_that_of_hugging_face(points: list[float], start: Tensor) -> None:
    told = torch.tensor(points)
    solver = RungeKuttaSteps.between(told)
    found = run_to_end(solver.solve(velocity_of(solver.times), start))
    reference: Any = RungeKutta4ODESolver(slope, start)  # type: ignore[no-untyped-call]
    assert torch.equal(found, reference.integrate(told)[-1])


def midpoint(points: Tensor, value: Tensor) -> Tensor:
    """The method `midpoint` of torchdiffeq's `odeint` on a fixed grid."""
    for start, end in itertools.pairwise(points):
        width = end - start
        half = 0.5 * width
        middle = value + slope(start, value) * half
        value = value + width * slope(start + half, middle)
    return value


@pytest.mark.parametrize("points", [2, 3, 10])
def test_midpoint_is_that_of_torchdiffeq(points: int, start: Tensor) -> None:
    grid = torch.linspace(0, 1, points)
    solver = MidpointSteps.between(grid)
    assert len(solver.times) == 2 * (points - 1)
    found = run_to_end(solver.solve(velocity_of(solver.times), start))
    assert torch.equal(found, midpoint(grid, start))
