"""A heap of deadlines by key that makes postponing cheap.

Most deadlines are postponed many times before they expire: a stall clock restarts with every chunk.
So a later deadline is not pushed. The key's entry then expires early, and the caller enters the key
again with its current deadline. Postponing costs one comparison. Each key has at most one valid
entry; an entry may be early but never late.
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
        """Set a key's deadline to `moment`, or leave it unchanged if it is later or None."""
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
        """Return the earliest deadline, None if there is none."""
        heap, entered = self._heap, self._entered
        while heap and entered.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> list[str]:
        """Remove and return the expired keys. The caller re-enters those that have a later
        deadline."""
        keys = []
        while (moment := self.next()) is not None and moment <= now:
            _, key = heappop(self._heap)
            del self._entered[key]
            keys.append(key)
        return keys

    def _drop_stale(self) -> None:
        """Rebuild the heap when it holds many more entries than keys."""
        if len(self._heap) > SPARE_ENTRIES + 4 * len(self._entered):
            self._heap = sorted((moment, key) for key, moment in self._entered.items())
