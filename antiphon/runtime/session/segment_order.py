"""Keeps a session's segments in order and holds chunks that arrive early for a later segment."""

from __future__ import annotations

from collections import deque

from antiphon.errors import FailedPrecondition, ResourceExhausted
from antiphon.runtime.session.inbox import held_size
from antiphon.values.chunk import Chunk


class SegmentOrder:
    """Numbers the segments of one session. `next` is the number of the segment that can be opened
    next.

    `ended` is true once the last segment has been opened. Held chunks may have a total size of up
    to `hold_bytes` bytes.
    """

    def __init__(self, hold_bytes: int) -> None:
        self.next = 0
        self.ended = False
        self._hold_bytes = hold_bytes
        self._early: deque[Chunk] = deque()
        self._early_bytes = 0

    def check(self, number: int) -> None:
        """Raise `FailedPrecondition` if the segment with this number can't be opened now."""
        if number != self.next:
            raise FailedPrecondition(f"segment {number} was opened instead of segment {self.next}")
        if self.ended:
            raise FailedPrecondition(f"segment {number} was opened after the last one")

    def has_early(self, number: int) -> bool:
        """Return whether any chunk of this segment has arrived early."""
        return any(chunk.segment == number for chunk in self._early)

    def use(self) -> deque[Chunk]:
        """Advance to the next number. Returns all chunks that arrived early, including those of
        later segments.
        """
        self.next += 1
        early, self._early, self._early_bytes = self._early, deque(), 0
        return early

    def keep(self, chunk: Chunk) -> None:
        """Hold a chunk whose segment isn't open yet. Raises `ResourceExhausted` if the buffer is
        full.
        """
        self._early_bytes += held_size(chunk)
        if self._early_bytes > self._hold_bytes:
            raise ResourceExhausted(
                f"{chunk.edge}: chunks of later segments fill {self._hold_bytes} bytes "
                "(sessions.hold_bytes)",
                edge=chunk.edge,
            )
        self._early.append(chunk)
