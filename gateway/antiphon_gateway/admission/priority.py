"""The priorities of requests. This module performs no I/O."""

from __future__ import annotations

import enum


class Priority(enum.StrEnum):
    """The priorities, from highest to lowest."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def place(self) -> int:
        """The position of this priority, starting at 0 for the highest."""
        return _PLACES[self]


_PLACES = {priority: place for place, priority in enumerate(Priority)}


def lower(one: Priority, other: Priority) -> Priority:
    """Return the lower of two priorities."""
    return max(one, other, key=lambda each: each.place)
