"""Computes percentiles and linear regressions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# The number of values required for a percentile, chosen so that at least one value is above it.
# With 19 values, for example, the maximum is above both p90 and p99, so it would be misleading to
# report it as p99.
ENOUGH_FOR = {90: 10, 99: 100}


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of a metric over many requests, in the metric's unit.

    A percentile is None if there are fewer values than `ENOUGH_FOR` requires.
    """

    count: int
    mean: float
    min: float
    p50: float
    p90: float | None
    p99: float | None
    max: float


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` percent of the values lie, with linear interpolation.

    This is equivalent to `numpy.percentile`. `ascending` must be sorted and not empty.
    """
    place = (len(ascending) - 1) * percent / 100
    low, high = math.floor(place), math.ceil(place)
    return ascending[low] + (ascending[high] - ascending[low]) * (place - low)


def distribution(values: Iterable[float]) -> Distribution | None:
    """Return the distribution of the values, or None if there are no values."""
    ascending = sorted(values)
    if not ascending:
        return None
    p90, p99 = (
        percentile(ascending, percent) if len(ascending) >= enough else None
        for percent, enough in ENOUGH_FOR.items()
    )
    return Distribution(
        count=len(ascending),
        mean=math.fsum(ascending) / len(ascending),
        min=ascending[0],
        p50=percentile(ascending, 50),
        p90=p90,
        p99=p99,
        max=ascending[-1],
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of a least-squares line, or 0 if there are fewer than two distinct x
    values.
    """
    if not points:
        return 0.0
    mean_x = math.fsum(x for x, _ in points) / len(points)
    mean_y = math.fsum(y for _, y in points) / len(points)
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    shared = math.fsum((x - mean_x) * (y - mean_y) for x, y in points)
    return shared / spread if spread else 0.0
