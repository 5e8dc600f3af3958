"""The Euler method with steps that are shorter at the start."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from services.flow.work import Velocity, Work


@dataclass(frozen=True, slots=True)
class EulerSteps:
    """When the velocity is evaluated, float32 [steps], and how far each step goes."""

    times: Tensor
    widths: tuple[float, ...]

    @classmethod
    def cosine(cls, steps: int) -> EulerSteps:
        """Points at 1 - cos(pi * k / (2 * steps)).

        Times are sums of widths in float32, as `solve_euler` of CosyVoice computes them: the
        rounding of both is part of the reference.
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

    def solve(self, velocity: Velocity, value: Tensor) -> Work[Tensor]:
        """The value at time 1 of the one at time 0."""
        for number, width in enumerate(self.widths):
            value = value + width * (yield from velocity(number, value))
        return value
