"""A heap of deadlines by key, in which postponing a deadline is cheap.

Most deadlines are postponed many times before they expire. For example, a stall clock restarts with
every chunk. For this reason, a later deadline does not update the heap. When the key's entry
expires too early, the caller enters the key again with its current deadline. This makes postponing
a deadline as cheap as a comparison. Each key has at most one valid entry, which may be too early,
but never too late.
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
        """Set the deadline of a key to `moment`. If `moment` is None or later than the current
        entry, nothing changes.
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
        """Return the earliest deadline, or None if there is none."""
        heap, entered = self._heap, self._entered
        while heap and entered.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> list[str]:
        """Remove and return all keys that have expired. The caller must enter a key again if its
        actual deadline is later.
        """
        keys = []
        while (moment := self.next()) is not None and moment <= now:
            _, key = heappop(self._heap)
            del self._entered[key]
            keys.append(key)
        return keys

    def _drop_stale(self) -> None:
        """Rebuild the heap if it contains many more entries than there are keys."""
        if len(self._heap) > SPARE_ENTRIES + 4 * len(self._entered):
            self._heap = sorted((moment, key) for key, moment in self._entered.items())
