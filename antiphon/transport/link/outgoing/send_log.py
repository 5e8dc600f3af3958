"""The chunks of a link that the consumer has not acknowledged; pure.

What waits is in order within its session, and sessions take turns. A chunk gets its
number, which is its place on the link, when it is sent: so one whose payload is still on
its way is passed by the chunks of other sessions, and only by those. What has been sent
stays until it is acknowledged.

Bounds, so that no session can have another's chunks refused:

* Of each session at most `session_bytes` wait, and as many are sent before the consumer
  has to acknowledge some. One chunk may always go alone, however large it is.
* Of all sessions `link_bytes` wait or are not acknowledged. Over that only those are
  refused who hold more than an equal share of it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Container
from dataclasses import dataclass, field

from antiphon.errors import ResourceExhausted
from antiphon.v1 import chunk_pb2
from antiphon.wire.blob import Encoding


class Outgoing:
    """A chunk on its way: its address, and its tensors where it has any; `size_bytes` are its
    blob's."""

    __slots__ = ("address", "encoding", "session_id", "size_bytes")

    def __init__(self, address: chunk_pb2.Chunk, encoding: Encoding | None) -> None:
        self.address = address
        self.encoding = encoding
        self.session_id = address.session_id
        self.size_bytes = 0 if encoding is None else encoding.size_bytes


@dataclass(slots=True)
class _SessionLog:
    """What one session has on the link; `sent` chunks are not acknowledged."""

    waiting: deque[Outgoing] = field(default_factory=deque)
    waiting_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        return self.waiting_bytes + self.sent_bytes


class SendLog:
    """Chunks from the first that is not acknowledged to the last that waits."""

    def __init__(self, session_bytes: int, link_bytes: int) -> None:
        self._session_bytes = session_bytes
        self._link_bytes = link_bytes
        self._sessions: dict[str, _SessionLog] = {}
        # Those of which something waits; the first is the next whose turn it is.
        self._turns: OrderedDict[str, None] = OrderedDict()
        self._sent: deque[Outgoing] = deque()
        self._first = 0
        self._held_bytes = 0

    @property
    def acknowledged(self) -> int:
        """How many chunks the consumer has for certain."""
        return self._first

    @property
    def unconfirmed(self) -> bool:
        """Whether anything was sent that the consumer has not acknowledged."""
        return bool(self._sent)

    @property
    def waits(self) -> bool:
        """Whether anything has not been sent."""
        return bool(self._turns)

    @property
    def sessions(self) -> Collection[str]:
        """Those of which the consumer has not acknowledged everything."""
        return self._sessions.keys()

    def append(self, chunk: Outgoing) -> None:
        """A chunk to send. Raises `ResourceExhausted` when too much waits already."""
        size, session_id = chunk.size_bytes, chunk.session_id
        session = self._sessions.get(session_id) or _SessionLog()
        if session.waiting and session.waiting_bytes + size > self._session_bytes:
            raise _refusal(chunk, f"{self._session_bytes} bytes of the session wait on the link")
        is_full = self._held_bytes and self._held_bytes + size > self._link_bytes
        share = self._link_bytes // (len(self._sessions) + (session_id not in self._sessions))
        if is_full and session.held_bytes + size > share:
            raise _refusal(
                chunk,
                f"{self._link_bytes} bytes of all sessions wait on the link, and of this one "
                f"more than its share of {share}",
            )
        self._sessions[session_id] = session
        self._held_bytes += size
        session.waiting.append(chunk)
        session.waiting_bytes += size
        self._turns.setdefault(session_id)

    def first(self, held: Container[str] = ()) -> Outgoing | None:
        """The next chunk that may be sent, of a session that is not held; None without one.

        Nor does a session send of which the consumer has to acknowledge something before.
        """
        for session_id in self._turns:
            session = self._sessions[session_id]
            may_send = not session.sent or session.sent_bytes < self._session_bytes
            if may_send and session_id not in held:
                return session.waiting[0]
        return None

    def sent(self, chunk: Outgoing) -> int:
        """A session's first waiting chunk is sent now: its number. Raises `ValueError` for any
        other."""
        session = self._sessions.get(chunk.session_id)
        if session is None or not session.waiting or session.waiting[0] is not chunk:
            raise ValueError("the chunk is not the next of its session")
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
        """The chunk that was sent with a number, if it is not acknowledged."""
        at = number - self._first
        return self._sent[at] if 0 <= at < len(self._sent) else None

    def acknowledge(self, count: int) -> list[Outgoing]:
        """The consumer has the first `count` chunks of the link; those that it had not before."""
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
        """Send again from a number on; how many were sent before and will be again."""
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
        """Take a chunk off what its session has sent."""
        session = self._sessions[chunk.session_id]
        session.sent -= 1
        session.sent_bytes -= chunk.size_bytes
        return session


def _refusal(chunk: Outgoing, why: str) -> ResourceExhausted:
    edge = chunk.address.edge
    return ResourceExhausted(f"{edge}: {why}", edge=edge)
