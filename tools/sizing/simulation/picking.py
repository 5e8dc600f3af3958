"""Which of many replicas a call takes: the less loaded of two that are drawn. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable


def pick(count: int, load: Callable[[int], float], source: random.Random) -> int:
    """The number of a replica; of two with the same load, the first that was drawn."""
    if count == 1:
        return 0
    first = int(source.random() * count)
    second = int(source.random() * (count - 1))
    second += second >= first
    return first if load(first) <= load(second) else second
