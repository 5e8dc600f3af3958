"""How early a request is served. Pure."""

from __future__ import annotations

import enum


class Priority(enum.StrEnum):
    """The highest first."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def place(self) -> int:
        """0 for the highest."""
        return _PLACES[self]


_PLACES = {priority: place for place, priority in enumerate(Priority)}


def lower(one: Priority, other: Priority) -> Priority:
    """The lower one of two."""
    return max(one, other, key=lambda each: each.place)
