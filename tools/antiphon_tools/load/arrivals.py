"""When requests arrive: a Poisson process, the same for the same seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator


def poisson_arrivals(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Arrival times in [0, seconds), ascending; on average `rate` of them a second.

    The gaps are exponential, so arrivals bunch up as those of independent users do.
    """
    gaps, at_s = random.Random(seed), 0.0
    while (at_s := at_s + gaps.expovariate(rate)) < seconds:
        yield at_s
