"""Linear interpolation between measured points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from antiphon.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Curve:
    """A piecewise linear function. `xs` must be in ascending order.

    Below the first point, the value is constant. Beyond the last point, the last segment is
    extended, except that the value never decreases.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]

    @classmethod
    def of(cls, points: Mapping[float, float], field: str) -> Curve:
        """Create a curve from points. Raises `InvalidArgument`, with the name of the field, on
        errors.
        """
        if not points:
            raise InvalidArgument(
                f"{field}: has no points; add at least one, such as {{1: 0.01}}", field=field
            )
        for x, y in points.items():
            if x < 0 or not 0 <= y < float("inf"):
                raise InvalidArgument(
                    f"{field}: {x:g}: {y:g} is not a valid measurement; both values must be at "
                    "least 0",
                    field=field,
                )
        xs = tuple(sorted(points))
        return cls(xs, tuple(points[x] for x in xs))

    def __call__(self, x: float) -> float:
        """Return the value at x."""
        xs, ys = self.xs, self.ys
        if len(xs) == 1 or x <= xs[0]:
            return ys[0]
        right = min(bisect_right(xs, x), len(xs) - 1)
        left = right - 1
        slope = (ys[right] - ys[left]) / (xs[right] - xs[left])
        if x > xs[-1]:
            return ys[-1] + max(slope, 0.0) * (x - xs[-1])
        return ys[left] + slope * (x - xs[left])
