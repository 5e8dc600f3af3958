"""The times at which the flow's velocity is evaluated. There are nine steps, which are smaller at
the beginning.
"""

from __future__ import annotations

import torch
from torch import Tensor

from antiphon_services.flow.runge_kutta import STAGES

POINTS = 10
EVALUATIONS = (POINTS - 1) * STAGES


def time_points() -> Tensor:
    """Return the points from 0 to 1, as float32 [POINTS]. They are given by 1 - cos(pi * k /
    18).
    """
    even = torch.linspace(0, 1, POINTS)
    even += -1.0 * (torch.cos(torch.pi / 2 * even) - 1 + even)
    return even
