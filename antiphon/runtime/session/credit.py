"""Credit: how far a governed edge may run ahead of the one who takes from it. Counts only.

Both ends learn the edge's window when the session opens: that many positions of a
segment may be on their way. A grant is a total, counted from the segment's start,
so that a repeated or overtaken one changes nothing. Every segment starts with the
window.

Rules that keep both ends moving:

* A chunk goes when it ends within the grant, or when all that went before it was
  taken: otherwise one that is larger than the window could never go.
* What was taken is granted anew at once, all of it: a rest that was held back could
  be what the next chunk lacks.
"""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.runtime.session.instructions import Destination


class Credit:
    """The producer's side of one output edge of one segment. The slowest destination counts."""

    def __init__(self, window: int, destinations: Iterable[Destination]) -> None:
        self._window = window
        self._granted = dict.fromkeys(destinations, window)

    @property
    def granted(self) -> int:
        """Positions that may have gone in all."""
        return min(self._granted.values())

    def grant(self, destination: Destination, positions: int) -> None:
        """A destination takes up to `positions` in all; a lower total than before is late."""
        before = self._granted.get(destination)
        if before is not None:
            self._granted[destination] = max(before, positions)

    def covers(self, sent: int, size: int) -> bool:
        """Whether a chunk of `size` positions may follow the `sent` ones now."""
        left = self.granted - sent
        return size <= left or left >= self._window


class Intake:
    """The consumer's side of one input edge of one segment."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._arrived = 0
        self._granted = window

    def add(self, positions: int) -> None:
        """So many positions came."""
        self._arrived += positions

    def take_all(self) -> int | None:
        """All that came was taken: the total to grant, None when it is granted already."""
        total = self._arrived + self._window
        if total == self._granted:
            return None
        self._granted = total
        return total
