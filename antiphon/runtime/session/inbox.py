"""Delivers the input of a session in order and exactly once, and keeps chunks that arrive before
the session is open.

The sequence number determines what happens to a chunk. If it is the expected number, the chunk is
delivered. If it is lower, the chunk is a duplicate and is dropped. If it is higher, a chunk has
been lost.
"""

from __future__ import annotations

from collections import OrderedDict

from antiphon.errors import AntiphonError, DataLoss, ResourceExhausted
from antiphon.runtime.session.facts import ChunkArrived
from antiphon.values.chunk import Chunk

CHUNK_BYTES = 1024
"""The approximate memory usage of a chunk without its tensors, in bytes. It ensures that empty
chunks are limited as well.
"""


def held_size(chunk: Chunk) -> int:
    """Return the number of bytes that a held chunk counts for."""
    return CHUNK_BYTES + chunk.size_bytes


class Inbox:
    """The next sequence number for each input edge of a session."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def admits(self, chunk: Chunk) -> bool:
        """Return whether the chunk is the next one on its edge. Returns False for a duplicate.

        Raises `DataLoss` if a chunk is missing before it.
        """
        expected = self._next.get(chunk.edge, 0)
        if chunk.sequence > expected:
            raise DataLoss(
                f"{chunk.edge}: chunk {chunk.sequence} came, {expected} was expected",
                edge=chunk.edge,
            )
        if chunk.sequence < expected:
            return False
        self._next[chunk.edge] = expected + 1
        return True


class EarlyChunks:
    """Chunks that arrived before their session was opened. Their total size and the time for which
    they are kept are limited.

    The times that are passed to the methods never decrease, so sessions expire in the order of
    their arrival. The IDs of closed sessions are remembered, so that late chunks are rejected
    immediately instead of being held. The number of these IDs is limited. They are remembered for
    longer than chunks are held.
    """

    def __init__(self, *, limit_bytes: int, timeout_s: float, remembered: int = 65536) -> None:
        self._limit_bytes = limit_bytes
        self._timeout_s = timeout_s
        self._remembered = remembered
        self._held: dict[str, list[ChunkArrived]] = {}
        self._since: dict[str, float] = {}
        self._closed: OrderedDict[str, AntiphonError | None] = OrderedDict()
        self.held_bytes = 0

    def is_closed(self, session_id: str) -> bool:
        """Return whether the session was open here and has ended."""
        return session_id in self._closed

    def fault(self, session_id: str) -> AntiphonError | None:
        """Return the error that was found in the chunks of a session before it was opened, or None
        if there was none.
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
                f"{chunk.edge}: chunks for unopened sessions fill {self._limit_bytes} bytes "
                "(sessions.hold_bytes)",
                edge=chunk.edge,
            )
        self._held.setdefault(chunk.session_id, []).append(arrival)
        self._since.setdefault(chunk.session_id, now)
        self.held_bytes += size_bytes

    def take(self, session_id: str) -> tuple[ChunkArrived, ...]:
        """Remove the chunks of a session that is being opened, and return them in order of
        arrival.
        """
        arrivals = tuple(self._held.pop(session_id, ()))
        self._since.pop(session_id, None)
        self.held_bytes -= sum(held_size(arrival.chunk) for arrival in arrivals)
        return arrivals

    def close(self, session_id: str, fault: AntiphonError | None = None) -> None:
        """Remember that a session has ended, or that `fault` prevents it from opening. Its held
        chunks are dropped.
        """
        self.take(session_id)
        self._closed[session_id] = fault
        if len(self._closed) > self._remembered:
            self._closed.popitem(last=False)

    def expired(self, now: float) -> tuple[tuple[str, tuple[ChunkArrived, ...]], ...]:
        """Remove the sessions that were not opened in time, and return them with their chunks."""
        gone = []
        while (expiry := self.next_expiry()) is not None and now >= expiry:
            session_id = next(iter(self._since))
            gone.append((session_id, self.take(session_id)))
        return tuple(gone)

    def next_expiry(self) -> float | None:
        """Return the next time at which `expired` will return a session, or None if no chunk is
        held.
        """
        return next(iter(self._since.values())) + self._timeout_s if self._since else None
