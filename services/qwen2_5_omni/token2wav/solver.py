"""The flow's differential equation: when its velocity is asked for, and what is made of it.

Nine steps of the 3/8-rule Runge-Kutta method, four evaluations each, between ten points of time
that lie closer at the start. Times and products are those of the reference, in its order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

POINTS = 10
STEPS = POINTS - 1
STAGES = 4
EVALUATIONS = STEPS * STAGES

_ONE_THIRD, _TWO_THIRDS = 1 / 3, 2 / 3

Work = Generator[int, None, Tensor]
"""Computes a tensor bit by bit: what it gives on the way is how many rows a layer has done."""
Velocity = Callable[[int, Tensor], Work]
"""Of evaluation number 0 to `EVALUATIONS` - 1, at a value; of the value's shape."""


def time_points() -> Tensor:
    """float32 [POINTS], from 0 to 1: 1 - cos(pi * k / 18)."""
    even = torch.linspace(0, 1, POINTS)
    even += -1.0 * (torch.cos(torch.pi / 2 * even) - 1 + even)
    return even


def evaluation_times(points: Tensor) -> Tensor:
    """float32 [EVALUATIONS]: the times of all steps' stages."""
    times = []
    for start, end in itertools.pairwise(points):
        width = end - start
        times += [start, start + width * _ONE_THIRD, start + width * _TWO_THIRDS, end]
    return torch.stack(times)


def advance(velocity: Velocity, step: int, widths: Sequence[float], value: Tensor) -> Work:
    """The value after step number `step`, which is `widths[step]` wide."""
    width, first = widths[step], step * STAGES
    k1 = yield from velocity(first, value)
    k2 = yield from velocity(first + 1, value + width * k1 * _ONE_THIRD)
    k3 = yield from velocity(first + 2, value + width * (k2 - k1 * _ONE_THIRD))
    k4 = yield from velocity(first + 3, value + width * (k1 - k2 + k3))
    return value + (k1 + 3 * (k2 + k3) + k4) * width / 8
