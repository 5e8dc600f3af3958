"""Long computations in small steps, so that an engine can interleave them on one thread."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from torch import Tensor

Result = TypeVar("Result")

Work = Generator[int, None, Result]
"""Computes a result in steps. Each step yields its cost: the number of layer rows."""

Velocity = Callable[[int, Tensor], Work[Tensor]]
"""Returns the velocity for evaluation number 0, 1, ... and a value, in the value's shape."""


def run_to_end(work: Work[Result]) -> Result:
    """Run all steps and return the result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
