"""Order and exactly-once for the input edges of one session, and chunks that came too early.

The sequence number decides: the expected one is delivered, an older one is a duplicate and
dropped, a later one means that a chunk was lost.
"""

from __future__ import annotations

from collections import OrderedDict

from antiphon.errors import AntiphonError, DataLoss, ResourceExhausted
from antiphon.runtime.session.facts import ChunkArrived
from antiphon.values.chunk import Chunk

CHUNK_BYTES = 1024
"""About what a chunk that waits takes beside its tensors' bytes, so that empty ones are bounded."""


def held_size(chunk: Chunk) -> int:
    """Bytes that a chunk counts for while it waits."""
    return CHUNK_BYTES + chunk.size_bytes


class Inbox:
    """Sequence numbers of one session's input edges."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def admits(self, chunk: Chunk) -> bool:
        """Whether the chunk is the next of its edge; False for a duplicate.

        Raises `DataLoss` for a gap.
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
    """Chunks that came before their session was opened, bounded in bytes and seconds.

    Time goes on from call to call, so the session that came first is the first to expire.
    Also remembers the ids of closed sessions, so that late chunks are refused at
    once instead of being held; the memory is bounded and outlives the hold time.
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
        """Whether the session was here and has ended."""
        return session_id in self._closed

    def fault(self, session_id: str) -> AntiphonError | None:
        """What was wrong with a session before it was opened."""
        return self._closed.get(session_id)

    def hold(self, arrival: ChunkArrived, now: float) -> None:
        """Keep a chunk until its session opens. Raises `ResourceExhausted` when full."""
        chunk = arrival.chunk
        size_bytes = held_size(chunk)
        if self.held_bytes + size_bytes > self._limit_bytes:
            raise ResourceExhausted(
                f"{chunk.edge}: chunks for unopened sessions fill {self._limit_bytes} bytes "
                "(hold_bytes)",
                edge=chunk.edge,
            )
        self._held.setdefault(chunk.session_id, []).append(arrival)
        self._since.setdefault(chunk.session_id, now)
        self.held_bytes += size_bytes

    def take(self, session_id: str) -> tuple[ChunkArrived, ...]:
        """The chunks held for a session that opens now, in order of arrival."""
        arrivals = tuple(self._held.pop(session_id, ()))
        self._since.pop(session_id, None)
        self.held_bytes -= sum(held_size(arrival.chunk) for arrival in arrivals)
        return arrivals

    def close(self, session_id: str, fault: AntiphonError | None = None) -> None:
        """Remember that a session has ended, or why it must not begin; drop what is held."""
        self.take(session_id)
        self._closed[session_id] = fault
        if len(self._closed) > self._remembered:
            self._closed.popitem(last=False)

    def expired(self, now: float) -> tuple[tuple[str, tuple[ChunkArrived, ...]], ...]:
        """Sessions that were not opened in time, with their chunks, which are held no more."""
        gone = []
        while (expiry := self.next_expiry()) is not None and now >= expiry:
            session_id = next(iter(self._since))
            gone.append((session_id, self.take(session_id)))
        return tuple(gone)

    def next_expiry(self) -> float | None:
        """When `expired` will next have something."""
        return next(iter(self._since.values())) + self._timeout_s if self._since else None
