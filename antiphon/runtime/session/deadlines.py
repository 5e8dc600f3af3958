"""A deadline heap with keys, in which postponing a deadline is cheap.

Most deadlines are postponed many times before they expire. A stall clock, for example, restarts
with every chunk. Postponing a deadline therefore doesn't update the heap. Instead, the key expires
at the earlier time, and the caller enters it again with its current deadline. As a result,
postponing a deadline costs no more than a comparison. Each key has at most one valid entry, which
may be too early but is never too late.
"""

from __future__ import annotations

from heapq import heappop, heappush

SPARE_ENTRIES = 64


class Deadlines:
    """Deadlines in seconds, by key."""

    def __init__(self) -> None:
        self._entered: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def enter(self, key: str, moment: float | None) -> None:
        """Set a key's deadline to `moment`. Nothing changes if `moment` is None or later than the
        current entry.
        """
        if moment is None:
            return
        entered = self._entered.get(key)
        if entered is None or moment < entered:
            self._entered[key] = moment
            heappush(self._heap, (moment, key))
            self._drop_stale()

    def forget(self, key: str) -> None:
        """Remove a key."""
        self._entered.pop(key, None)
        self._drop_stale()

    def next(self) -> float | None:
        """Return the earliest deadline, or None if there are no deadlines."""
        heap, entered = self._heap, self._entered
        while heap and entered.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> list[str]:
        """Remove and return all keys that have expired. If a key's actual deadline is later, the
        caller must enter the key again.
        """
        keys = []
        while (moment := self.next()) is not None and moment <= now:
            _, key = heappop(self._heap)
            del self._entered[key]
            keys.append(key)
        return keys

    def _drop_stale(self) -> None:
        """Rebuild the heap if it contains far more entries than there are keys."""
        if len(self._heap) > SPARE_ENTRIES + 4 * len(self._entered):
            self._heap = sorted((moment, key) for key, moment in self._entered.items())
