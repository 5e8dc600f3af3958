"""Request arrival times, drawn from a Poisson process with a given seed."""

from __future__ import annotations

import random
from collections.abc import Iterator


def poisson_arrivals(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Yield arrival times in [0, seconds) in ascending order, with an average of `rate` arrivals
    per second.

    The intervals are exponentially distributed, so arrivals cluster as they do with independent
    users.
    """
    gaps, at_s = random.Random(seed), 0.0
    while (at_s := at_s + gaps.expovariate(rate)) < seconds:
        yield at_s
