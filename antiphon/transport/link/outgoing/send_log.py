"""The unsent and unacknowledged chunks of a link. This module performs no I/O.

Unsent chunks stay in order within their session, and sessions take turns. A chunk gets its number,
which is its position on the link, only when it is sent. While its payload is being transferred, a
chunk can be overtaken by chunks of other sessions, but not by those of its own session. Sent chunks
are kept until they are acknowledged.

The following limits ensure that one session can't cause the chunks of other sessions to be
rejected:

- A session may have up to `session_bytes` of unsent data, and the same amount of unacknowledged
  data. A single chunk is always accepted, whatever its size.
- All sessions together may have up to `link_bytes` of unsent and unacknowledged data. Beyond that,
  only sessions that use more than an equal share are rejected.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Container
from dataclasses import dataclass, field

from antiphon.errors import ResourceExhausted
from antiphon.v1 import chunk_pb2
from antiphon.wire.blob import Encoding


class Outgoing:
    """A chunk to be sent. It consists of an address and, if the chunk has tensors, their encoding.

    `size_bytes` is the size of the resulting blob.
    """

    __slots__ = ("address", "encoding", "session_id", "size_bytes")

    def __init__(self, address: chunk_pb2.Chunk, encoding: Encoding | None) -> None:
        self.address = address
        self.encoding = encoding
        self.session_id = address.session_id
        self.size_bytes = 0 if encoding is None else encoding.size_bytes


@dataclass(slots=True)
class _SessionLog:
    """The chunks of a single session on the link. Chunks in `sent` haven't been
    acknowledged yet.
    """

    waiting: deque[Outgoing] = field(default_factory=deque)
    waiting_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        return self.waiting_bytes + self.sent_bytes


class SendLog:
    """All chunks in order, from the first unacknowledged chunk to the last unsent one."""

    def __init__(self, session_bytes: int, link_bytes: int) -> None:
        self._session_bytes = session_bytes
        self._link_bytes = link_bytes
        self._sessions: dict[str, _SessionLog] = {}
        # The sessions with unsent chunks. The session that is served next comes first.
        self._turns: OrderedDict[str, None] = OrderedDict()
        self._sent: deque[Outgoing] = deque()
        self._first = 0
        self._held_bytes = 0

    @property
    def acknowledged(self) -> int:
        """The number of chunks that the consumer has acknowledged."""
        return self._first

    @property
    def unconfirmed(self) -> bool:
        """Whether there are chunks that were sent but have not been acknowledged."""
        return bool(self._sent)

    @property
    def waits(self) -> bool:
        """Whether there are chunks that have not been sent."""
        return bool(self._turns)

    @property
    def sessions(self) -> Collection[str]:
        """The sessions that have unsent or unacknowledged chunks."""
        return self._sessions.keys()

    def append(self, chunk: Outgoing) -> None:
        """Add a chunk to be sent. Raises `ResourceExhausted` if too much is queued."""
        size, session_id = chunk.size_bytes, chunk.session_id
        session = self._sessions.get(session_id) or _SessionLog()
        if session.waiting and session.waiting_bytes + size > self._session_bytes:
            raise _refusal(
                chunk, f"{self._session_bytes} bytes of the session are waiting on the link"
            )
        is_full = self._held_bytes and self._held_bytes + size > self._link_bytes
        share = self._link_bytes // (len(self._sessions) + (session_id not in self._sessions))
        if is_full and session.held_bytes + size > share:
            raise _refusal(
                chunk,
                f"{self._link_bytes} bytes of all sessions are waiting on the link, and this "
                f"session has exceeded its share of {share}",
            )
        self._sessions[session_id] = session
        self._held_bytes += size
        session.waiting.append(chunk)
        session.waiting_bytes += size
        self._turns.setdefault(session_id)

    def first(self, held: Container[str] = ()) -> Outgoing | None:
        """Return the next chunk to send from any session that isn't in `held`. Returns None if
        there is none.

        A session is skipped if it has too many unacknowledged bytes.
        """
        for session_id in self._turns:
            session = self._sessions[session_id]
            may_send = not session.sent or session.sent_bytes < self._session_bytes
            if may_send and session_id not in held:
                return session.waiting[0]
        return None

    def sent(self, chunk: Outgoing) -> int:
        """Mark a session's first unsent chunk as sent, and return its number.

        Raises `ValueError` if this chunk isn't `chunk`.
        """
        session = self._sessions.get(chunk.session_id)
        if session is None or not session.waiting or session.waiting[0] is not chunk:
            raise ValueError("the chunk is not the next one of its session")
        session.waiting.popleft()
        session.waiting_bytes -= chunk.size_bytes
        session.sent += 1
        session.sent_bytes += chunk.size_bytes
        if session.waiting:
            self._turns.move_to_end(chunk.session_id)
        else:
            del self._turns[chunk.session_id]
        self._sent.append(chunk)
        return self._first + len(self._sent) - 1

    def numbered(self, number: int) -> Outgoing | None:
        """Return the unacknowledged chunk with this number, or None if there is none."""
        at = number - self._first
        return self._sent[at] if 0 <= at < len(self._sent) else None

    def acknowledge(self, count: int) -> list[Outgoing]:
        """Acknowledge the first `count` chunks of the link. Returns those that are newly
        acknowledged.
        """
        come = []
        while self._first < count and self._sent:
            chunk = self._sent.popleft()
            come.append(chunk)
            self._first += 1
            self._held_bytes -= chunk.size_bytes
            session = self._unsent(chunk)
            if not session.sent and not session.waiting:
                del self._sessions[chunk.session_id]
        return come

    def rewind(self, number: int) -> int:
        """Mark all chunks starting with number `number` as unsent. Returns the number of these
        chunks.
        """
        again = 0
        while self._sent and self._first + len(self._sent) > number:
            chunk = self._sent.pop()
            again += 1
            session = self._unsent(chunk)
            session.waiting.appendleft(chunk)
            session.waiting_bytes += chunk.size_bytes
            self._turns.setdefault(chunk.session_id)
            self._turns.move_to_end(chunk.session_id, last=False)
        return again

    def _unsent(self, chunk: Outgoing) -> _SessionLog:
        """Remove a chunk from its session's sent chunks."""
        session = self._sessions[chunk.session_id]
        session.sent -= 1
        session.sent_bytes -= chunk.size_bytes
        return session


def _refusal(chunk: Outgoing, why: str) -> ResourceExhausted:
    edge = chunk.address.edge
    return ResourceExhausted(f"{edge}: {why}", edge=edge)
