"""Credit-based back-pressure: how many positions a producer may send ahead of its consumer.

Why: a stage that generates faster than its consumer would otherwise fill queues along the whole
pipeline, and a cancelled answer would have cost the work of all of it. Bounding bytes per link does
not help, since one link carries many sessions and one slow session must not stop the others. So
credit is counted per edge and per segment, in positions.

How it works:

1. The gateway gives both ends of a governed edge the same window when the session opens. Every
   segment starts with that much credit.
2. The producer sends a chunk only if `Credit.covers` it. Otherwise `OutputEdge` holds the chunk,
   and its `limit` stops the engine (`EngineRounds`) at the end of the chunk being filled, so that
   one chunk is ready when credit arrives. A held segment costs no engine steps.
3. The consumer adds each chunk to its `Intake`. When its engine has consumed everything and its own
   output is not held, `LiveSession._grant_inputs` sends a `Grant`. Back-pressure thus propagates
   from the client to the first stage.
4. A grant is a total counted from the start of the segment, not an increment. Duplicated or
   reordered grants have no effect.

Two rules prevent deadlock:

* A chunk may exceed the window if the consumer has taken everything before it. Otherwise a chunk
  larger than the window could never be sent.
* The consumer grants all that it took, at once. A retained remainder could be exactly what the next
  chunk lacks.

A credit stall is not an input stall: clocks for missing input stop while output is held.
"""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.runtime.session.instructions import Destination


class Credit:
    """The producer's side of one output edge of one segment. The slowest destination limits it."""

    def __init__(self, window: int, destinations: Iterable[Destination]) -> None:
        self._window = window
        self._granted = dict.fromkeys(destinations, window)

    @property
    def granted(self) -> int:
        """Total number of positions that may be sent, counted from the segment's start."""
        return min(self._granted.values())

    def grant(self, destination: Destination, positions: int) -> None:
        """Raise a destination's total to `positions`. A lower total than before is stale and
        ignored."""
        before = self._granted.get(destination)
        if before is not None:
            self._granted[destination] = max(before, positions)

    def covers(self, sent: int, size: int) -> bool:
        """Return whether a chunk of `size` positions may be sent after `sent` positions."""
        left = self.granted - sent
        return size <= left or left >= self._window


class Intake:
    """The consumer's side of one input edge of one segment."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._arrived = 0
        self._granted = window

    def add(self, positions: int) -> None:
        """Count `positions` that arrived."""
        self._arrived += positions

    def take_all(self) -> int | None:
        """Mark everything as consumed. Return the new total to grant, or None if it is
        unchanged."""
        total = self._arrived + self._window
        if total == self._granted:
            return None
        self._granted = total
        return total
