"""Long computations that are split into small steps, so that an engine can interleave several of
them on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from torch import Tensor

Result = TypeVar("Result")

Work = Generator[int, None, Result]
"""A computation in steps. Each step yields its cost, expressed as a number of layer rows, and the
computation finally returns a result.
"""

Velocity = Callable[[int, Tensor], Work[Tensor]]
"""A function that computes the velocity for an evaluation number (starting at 0) and a value. The
velocity has the same shape as the value.
"""


def run_to_end(work: Work[Result]) -> Result:
    """Run all steps and return the result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
