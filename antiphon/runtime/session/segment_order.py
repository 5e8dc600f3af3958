"""The order of the segments in a session, and chunks that arrived early for a later segment."""

from __future__ import annotations

from collections import deque

from antiphon.errors import FailedPrecondition, ResourceExhausted
from antiphon.runtime.session.inbox import held_size
from antiphon.values.chunk import Chunk


class SegmentOrder:
    """The numbers of the segments in one session. `next` is the number of the segment that can be
    opened next.

    `ended` is true once the last segment has been opened. The total size of held chunks is limited
    by `hold_bytes`.
    """

    def __init__(self, hold_bytes: int) -> None:
        self.next = 0
        self.ended = False
        self._hold_bytes = hold_bytes
        self._early: deque[Chunk] = deque()
        self._early_bytes = 0

    def check(self, number: int) -> None:
        """Raise `FailedPrecondition` if the segment with this number must not be opened now."""
        if number != self.next:
            raise FailedPrecondition(f"segment {number} was opened, {self.next} is next")
        if self.ended:
            raise FailedPrecondition(f"segment {number} was opened after the last one")

    def has_early(self, number: int) -> bool:
        """Return whether a chunk of this segment has arrived early."""
        return any(chunk.segment == number for chunk in self._early)

    def use(self) -> deque[Chunk]:
        """Advance to the next number. Returns the chunks that arrived early, for any segment."""
        self.next += 1
        early, self._early, self._early_bytes = self._early, deque(), 0
        return early

    def keep(self, chunk: Chunk) -> None:
        """Hold a chunk of a segment that is not open yet. Raises `ResourceExhausted` if the buffer
        is full.
        """
        self._early_bytes += held_size(chunk)
        if self._early_bytes > self._hold_bytes:
            raise ResourceExhausted(
                f"{chunk.edge}: chunks of later segments fill {self._hold_bytes} bytes "
                "(sessions.hold_bytes)",
                edge=chunk.edge,
            )
        self._early.append(chunk)
