"""The earliest moment at which each of many keys needs attention: one heap, cheap to postpone.

A key has at most one entry that counts. It may be early and is never late: a later moment than
the one entered is not entered at once, because most moments are postponed many times before
they come (a stall clock starts again with every chunk). Whoever finds an early key due enters
it again. So postponing costs a comparison, and what is asked is the head of the heap.
"""

from __future__ import annotations

from heapq import heappop, heappush

SPARE_ENTRIES = 64


class Deadlines:
    """Moments in seconds, by key."""

    def __init__(self) -> None:
        self._entered: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def enter(self, key: str, moment: float | None) -> None:
        """The key needs attention at that moment, as far as is known now; None: at none."""
        if moment is None:
            return
        entered = self._entered.get(key)
        if entered is None or moment < entered:
            self._entered[key] = moment
            heappush(self._heap, (moment, key))
            self._drop_stale()

    def forget(self, key: str) -> None:
        """The key is gone."""
        self._entered.pop(key, None)
        self._drop_stale()

    def next(self) -> float | None:
        """When `due` will next have something; None: not until something is entered."""
        heap, entered = self._heap, self._entered
        while heap and entered.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> list[str]:
        """The keys whose moment has come; each has to be entered again if it has another."""
        keys = []
        while (moment := self.next()) is not None and moment <= now:
            _, key = heappop(self._heap)
            del self._entered[key]
            keys.append(key)
        return keys

    def _drop_stale(self) -> None:
        """Keep no more entries than a few for each key: rare enough to cost nothing."""
        if len(self._heap) > SPARE_ENTRIES + 4 * len(self._entered):
            self._heap = sorted((moment, key) for key, moment in self._entered.items())
