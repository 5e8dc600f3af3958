"""The midpoint method for a given list of times."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon_services.flow.work import Velocity, Work

STAGES = 2
"""The number of evaluations per step."""


@dataclass(frozen=True, slots=True)
class MidpointSteps:
    """The times at which the velocity is evaluated (float32 [STAGES * steps]), and the width of
    each step (float32 [steps]).
    """

    times: Tensor
    widths: Tensor

    @classmethod
    def between(cls, points: Tensor) -> MidpointSteps:
        """Return one step between each pair of consecutive points (float32 [steps + 1])."""
        widths = points[1:] - points[:-1]
        times = [
            each
            for (start, _), width in zip(itertools.pairwise(points), widths, strict=True)
            for each in (start, start + 0.5 * width)
        ]
        return cls(torch.stack(times), widths)

    def solve(self, velocity: Velocity, value: Tensor) -> Work[Tensor]:
        """Return the value at the last point, given the value at the first point.

        Products are computed in the same order as in torchdiffeq's `midpoint` method.
        """
        for step, width in enumerate(self.widths):
            first = STAGES * step
            slope = yield from velocity(first, value)
            middle = value + slope * (0.5 * width)
            value = value + width * (yield from velocity(first + 1, middle))
        return value
