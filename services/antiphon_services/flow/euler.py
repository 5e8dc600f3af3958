"""The Euler method with steps that are smaller at the beginning."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon_services.flow.work import Velocity, Work

PRUNED_POINTS = {
    5: (0, 2, 4, 8, 16, 32),
    6: (0, 2, 4, 6, 8, 16, 32),
    7: (0, 2, 4, 6, 8, 16, 24, 32),
    10: (0, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32),
    12: (0, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32),
    16: (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32),
}
"""The points of empirically pruned step sampling for each number of steps, in units of 1/32."""


@dataclass(frozen=True, slots=True)
class EulerSteps:
    """The times at which the velocity is evaluated (float32 [steps]), and the width of each
    step.
    """

    times: Tensor
    widths: tuple[float, ...]

    @classmethod
    def cosine(cls, steps: int) -> EulerSteps:
        """Return steps between the points 1 - cos(pi * k / (2 * steps)).

        The times are computed as sums of float32 widths, as in CosyVoice's `solve_euler`, because
        the rounding errors of both are part of the reference.
        """
        points = 1 - torch.cos(torch.linspace(0, 1, steps + 1) * 0.5 * torch.pi)
        time, width = points[0], points[1] - points[0]
        times, widths = [], []
        for step in range(1, steps + 1):
            times.append(time)
            widths.append(float(width))
            time = time + width
            if step < steps:
                width = points[step + 1] - time
        return cls(torch.stack(times), tuple(widths))

    @classmethod
    def pruned(cls, steps: int) -> EulerSteps:
        """Return the steps of empirically pruned step sampling, with sway towards the beginning
        (F5-TTS).

        If there is no table for this number of steps, they all have the same width before sway is
        applied.
        """
        if steps in PRUNED_POINTS:
            points = 1 / 32 * torch.tensor(PRUNED_POINTS[steps], dtype=torch.float32)
        else:
            points = torch.linspace(0, 1, steps + 1)
        points = points - (torch.cos(torch.pi / 2 * points) - 1 + points)
        return cls(points[:-1], tuple(float(each) for each in points.diff()))

    def solve(self, velocity: Velocity, value: Tensor) -> Work[Tensor]:
        """Return the value at time 1, given the value at time 0."""
        for number, width in enumerate(self.widths):
            value = value + width * (yield from velocity(number, value))
        return value
