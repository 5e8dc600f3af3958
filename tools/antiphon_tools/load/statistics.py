"""What many values have in common: percentiles and the slope of a line. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# What is above a percentile must be a value at least: of 19 values the largest is above p90
# and p99 alike, and to call it p99 would say more than is known.
ENOUGH_FOR = {90: 10, 99: 100}


@dataclass(frozen=True, slots=True)
class Distribution:
    """A metric over many requests; the unit is the metric's.

    A percentile of fewer values than it takes (`ENOUGH_FOR`) is None.
    """

    count: int
    mean: float
    min: float
    p50: float
    p90: float | None
    p99: float | None
    max: float


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, interpolated between neighbours.

    The same as `numpy.percentile`. `ascending` must be sorted and not empty.
    """
    place = (len(ascending) - 1) * percent / 100
    low, high = math.floor(place), math.ceil(place)
    return ascending[low] + (ascending[high] - ascending[low]) * (place - low)


def distribution(values: Iterable[float]) -> Distribution | None:
    """The distribution of the values; None without any."""
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
    """How much y grows with each x, by least squares; 0 for fewer than two different x."""
    if not points:
        return 0.0
    mean_x = math.fsum(x for x, _ in points) / len(points)
    mean_y = math.fsum(y for _, y in points) / len(points)
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    shared = math.fsum((x - mean_x) * (y - mean_y) for x, y in points)
    return shared / spread if spread else 0.0
