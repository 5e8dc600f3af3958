"""Long computations in small steps, so that an engine can share its thread among them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from torch import Tensor

Result = TypeVar("Result")

Work = Generator[int, None, Result]
"""Computes its result step by step and yields how many rows of a layer each step took."""

Velocity = Callable[[int, Tensor], Work[Tensor]]
"""The velocity at evaluation number 0, 1, ... and a value; it has the value's shape."""


def run_to_end(work: Work[Result]) -> Result:
    """The result, computed without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
