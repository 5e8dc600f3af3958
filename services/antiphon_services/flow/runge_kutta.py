"""The Runge-Kutta method with the 3/8 rule, for a given list of times."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon_services.flow.work import Velocity, Work

STAGES = 4
"""The number of evaluations per step."""

_ONE_THIRD, _TWO_THIRDS = 1 / 3, 2 / 3


@dataclass(frozen=True, slots=True)
class RungeKuttaSteps:
    """The times at which the velocity is evaluated (float32 [STAGES * steps]), and the width of
    each step.
    """

    times: Tensor
    widths: tuple[float, ...]

    @classmethod
    def between(cls, points: Tensor) -> RungeKuttaSteps:
        """Return one step between each pair of consecutive points (float32 [steps + 1])."""
        times = []
        for start, end in itertools.pairwise(points):
            width = end - start
            times += [start, start + width * _ONE_THIRD, start + width * _TWO_THIRDS, end]
        return cls(torch.stack(times), tuple((points[1:] - points[:-1]).tolist()))

    def solve(self, velocity: Velocity, value: Tensor) -> Work[Tensor]:
        """Return the value at the last point, given the value at the first point.

        Products are computed in the same order as in transformers' `RungeKutta4ODESolver`.
        """
        for step, width in enumerate(self.widths):
            first = step * STAGES
            k1 = yield from velocity(first, value)
            k2 = yield from velocity(first + 1, value + width * k1 * _ONE_THIRD)
            k3 = yield from velocity(first + 2, value + width * (k2 - k1 * _ONE_THIRD))
            k4 = yield from velocity(first + 3, value + width * (k1 - k2 + k3))
            value = value + (k1 + 3 * (k2 + k3) + k4) * width / 8
        return value
