"""Delivers a session's input in order and exactly once. Chunks that arrive before the session is
open are kept until then.

A chunk with the expected sequence number is delivered. A lower number means that the chunk is a
duplicate, so it is dropped. A higher number means that a chunk has been lost.
"""

from __future__ import annotations

from collections import OrderedDict

from antiphon.errors import AntiphonError, DataLoss, ResourceExhausted
from antiphon.runtime.session.facts import ChunkArrived
from antiphon.values.chunk import Chunk

CHUNK_BYTES = 1024
"""The approximate number of bytes that a chunk uses in addition to its tensors. Counting it ensures
that empty chunks are limited as well.
"""


def held_size(chunk: Chunk) -> int:
    """Return the number of bytes that a held chunk contributes to the total."""
    return CHUNK_BYTES + chunk.size_bytes


class Inbox:
    """The next sequence number on each of a session's input edges."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def admits(self, chunk: Chunk) -> bool:
        """Return whether the chunk is the next one on its edge. Returns False if it is a duplicate.

        Raises `DataLoss` if an earlier chunk is missing.
        """
        expected = self._next.get(chunk.edge, 0)
        if chunk.sequence > expected:
            raise DataLoss(
                f"{chunk.edge}: received chunk {chunk.sequence} instead of chunk {expected}",
                edge=chunk.edge,
            )
        if chunk.sequence < expected:
            return False
        self._next[chunk.edge] = expected + 1
        return True


class EarlyChunks:
    """Chunks that arrived before their session was opened. There are limits on their total size and
    on how long they are kept.

    Callers must pass times in non-decreasing order, so sessions expire in the order in which they
    arrived. The IDs of closed sessions are remembered so that late chunks can be rejected
    immediately instead of being held. Only a limited number of IDs is remembered, but for longer
    than chunks are held.

    `next_expiry` is the time at which `expired` will next return a session, or None if no chunks
    are held. The stage reads it after every fact, but it rarely changes.
    """

    def __init__(self, *, limit_bytes: int, timeout_s: float, remembered: int = 65536) -> None:
        self._limit_bytes = limit_bytes
        self._timeout_s = timeout_s
        self._remembered = remembered
        self._held: dict[str, list[ChunkArrived]] = {}
        self._since: dict[str, float] = {}
        self._closed: OrderedDict[str, AntiphonError | None] = OrderedDict()
        self.held_bytes = 0
        self.next_expiry: float | None = None

    def is_closed(self, session_id: str) -> bool:
        """Return whether the session was open here before and has ended."""
        return session_id in self._closed

    def fault(self, session_id: str) -> AntiphonError | None:
        """Return the error that was found in a session's chunks before it was opened, or None if
        they were valid.
        """
        return self._closed.get(session_id)

    def hold(self, arrival: ChunkArrived, now: float) -> None:
        """Keep a chunk until its session opens. Raises `ResourceExhausted` if the buffer is
        full.
        """
        chunk = arrival.chunk
        size_bytes = held_size(chunk)
        if self.held_bytes + size_bytes > self._limit_bytes:
            raise ResourceExhausted(
                f"{chunk.edge}: chunks for sessions that aren't open yet exceed "
                f"{self._limit_bytes} bytes (sessions.hold_bytes)",
                edge=chunk.edge,
            )
        self._held.setdefault(chunk.session_id, []).append(arrival)
        self._since.setdefault(chunk.session_id, now)
        self._note_expiry()
        self.held_bytes += size_bytes

    def take(self, session_id: str) -> tuple[ChunkArrived, ...]:
        """Remove and return the chunks of a session that is being opened, in the order in which
        they arrived.
        """
        arrivals = tuple(self._held.pop(session_id, ()))
        if self._since.pop(session_id, None) is not None:
            self._note_expiry()
        self.held_bytes -= sum(held_size(arrival.chunk) for arrival in arrivals)
        return arrivals

    def close(self, session_id: str, fault: AntiphonError | None = None) -> None:
        """Remember that a session has ended, or that it can't be opened because of `fault`. Its
        held chunks are dropped.
        """
        self.take(session_id)
        self._closed[session_id] = fault
        if len(self._closed) > self._remembered:
            self._closed.popitem(last=False)

    def expired(self, now: float) -> tuple[tuple[str, tuple[ChunkArrived, ...]], ...]:
        """Remove and return the sessions that weren't opened in time, together with their
        chunks.
        """
        gone = []
        while (expiry := self.next_expiry) is not None and now >= expiry:
            session_id = next(iter(self._since))
            gone.append((session_id, self.take(session_id)))
        return tuple(gone)

    def _note_expiry(self) -> None:
        """Update `next_expiry`. The session whose chunks have been held the longest is the first in
        `_since`.
        """
        oldest = next(iter(self._since.values()), None)
        self.next_expiry = None if oldest is None else oldest + self._timeout_s
