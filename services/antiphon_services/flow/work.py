"""Long computations that are divided into small steps, so that an engine can interleave them on one
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from torch import Tensor

Result = TypeVar("Result")

Work = Generator[int, None, Result]
"""Computes a result in steps. Each step yields its cost, which is the number of layer rows."""

Velocity = Callable[[int, Tensor], Work[Tensor]]
"""Returns the velocity for the number of an evaluation (0, 1 and so on) and a value. It has the
same shape as the value.
"""


def run_to_end(work: Work[Result]) -> Result:
    """Run all steps and return the result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
