"""Credit-based back-pressure, which limits how many positions a producer may send ahead of its
consumer.

Without it, a stage that generates faster than its consumer would fill queues along the whole
pipeline. If the answer were then cancelled, all of this work would be wasted. Limiting the bytes on
a link would not help, because a link carries many sessions, and a slow session must not block the
others. Credit is therefore counted for each edge of each segment, in positions.

It works as follows:

1. When a session opens, the gateway sends the same window to both ends of a governed edge. Every
   segment starts with this amount of credit.
2. The producer sends a chunk only if `Credit.covers` it. Otherwise `OutputEdge` holds the chunk.
   Its `limit` stops the engine (`EngineRounds`) at the end of the chunk that is being filled, so
   that one chunk is ready when credit arrives. A segment that is held does not cost any engine
   steps.
3. The consumer adds each chunk to its `Intake`. When its engine has consumed everything and its own
   output is not held, `LiveSession._grant_inputs` sends a `Grant`. In this way, back-pressure
   propagates from the client to the first stage.
4. A grant is a total since the start of the segment rather than an increment, so duplicated or
   reordered grants do no harm.

Two rules prevent deadlocks:

* A chunk may exceed the window if the consumer has consumed everything before it. Otherwise, a
  chunk larger than the window could never be sent.
* The consumer immediately grants everything that it has consumed. If it withheld any credit, that
  could be exactly what the next chunk needs.

Waiting for credit does not count as stalled input, so the stall clock stops while output is held.
"""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.runtime.session.instructions import Destination


class Credit:
    """The producer's credit for one output edge of a segment. The slowest destination determines
    how much may be sent.
    """

    def __init__(self, window: int, destinations: Iterable[Destination]) -> None:
        self._window = window
        self._granted = dict.fromkeys(destinations, window)

    @property
    def granted(self) -> int:
        """The total number of positions that may be sent, counted from the start of the segment."""
        return min(self._granted.values())

    def grant(self, destination: Destination, positions: int) -> None:
        """Raise a destination's total to `positions`. A total that is lower than the current one is
        outdated, so it is ignored.
        """
        before = self._granted.get(destination)
        if before is not None:
            self._granted[destination] = max(before, positions)

    def covers(self, sent: int, size: int) -> bool:
        """Return whether a chunk of `size` positions may be sent after the first `sent`
        positions.
        """
        left = self.granted - sent
        return size <= left or left >= self._window


class Intake:
    """Counts the positions that the consumer has received on one input edge of a segment."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._arrived = 0
        self._granted = window

    def add(self, positions: int) -> None:
        """Count `positions` more received positions."""
        self._arrived += positions

    def take_all(self) -> int | None:
        """Mark everything that was received as consumed. Returns the new total to grant, or None if
        nothing was added.
        """
        total = self._arrived + self._window
        if total == self._granted:
            return None
        self._granted = total
        return total
