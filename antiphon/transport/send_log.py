"""The chunks of a link that the consumer has not acknowledged; pure.

What waits is in the order in which it came. A chunk gets its number, which is its
place on the link, when it is sent: so one whose payload is still on its way may be
passed by the chunks of other sessions, and only by those. What has been sent stays
until it is acknowledged; both what waits and what was sent are bounded in bytes, and
one chunk may always go alone, however large it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass

from antiphon.errors import ResourceExhausted
from antiphon.v1 import chunk_pb2
from antiphon.wire.blob import Encoding


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """A chunk on its way: its address, and its tensors where it has any."""

    address: chunk_pb2.Chunk
    encoding: Encoding | None

    @property
    def session_id(self) -> str:
        """Whose it is."""
        return self.address.session_id

    @property
    def size_bytes(self) -> int:
        """Bytes of its blob."""
        return self.encoding.size_bytes if self.encoding else 0


class SendLog:
    """Chunks from the first that is not acknowledged to the last that waits."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._sent: deque[Outgoing] = deque()
        self._waiting: deque[Outgoing] = deque()
        self._first = 0
        self._waiting_bytes = 0
        self._sent_bytes = 0

    @property
    def acknowledged(self) -> int:
        """How many chunks the consumer has for certain."""
        return self._first

    @property
    def waits(self) -> bool:
        """Whether anything has not been sent."""
        return bool(self._waiting)

    def append(self, chunk: Outgoing) -> None:
        """A chunk to send. Raises `ResourceExhausted` when too much waits already."""
        if self._waiting and self._waiting_bytes + chunk.size_bytes > self._limit_bytes:
            edge = chunk.address.edge
            raise ResourceExhausted(
                f"{edge}: {self._limit_bytes} bytes wait on the link", edge=edge
            )
        self._waiting.append(chunk)
        self._waiting_bytes += chunk.size_bytes

    def first(self, held: Container[str] = ()) -> Outgoing | None:
        """The next chunk that may be sent, of a session that is not held; None without one.

        None too when the consumer has to acknowledge something before.
        """
        if self._sent and self._sent_bytes >= self._limit_bytes:
            return None
        return next((chunk for chunk in self._waiting if chunk.session_id not in held), None)

    def sent(self, chunk: Outgoing) -> int:
        """A waiting chunk is sent now: its number. Raises `ValueError` if it does not wait."""
        self._waiting.remove(chunk)
        self._waiting_bytes -= chunk.size_bytes
        self._sent.append(chunk)
        self._sent_bytes += chunk.size_bytes
        return self._first + len(self._sent) - 1

    def numbered(self, number: int) -> Outgoing | None:
        """The chunk that was sent with a number, if it is not acknowledged."""
        at = number - self._first
        return self._sent[at] if 0 <= at < len(self._sent) else None

    def acknowledge(self, count: int) -> list[Outgoing]:
        """The consumer has the first `count` chunks of the link; those that it had not before."""
        come = []
        while self._first < count and self._sent:
            come.append(self._sent.popleft())
            self._sent_bytes -= come[-1].size_bytes
            self._first += 1
        return come

    def rewind(self, number: int) -> int:
        """Send again from a number on; how many were sent before and will be again."""
        again = 0
        while self._sent and self._first + len(self._sent) > number:
            chunk = self._sent.pop()
            again += 1
            self._sent_bytes -= chunk.size_bytes
            self._waiting.appendleft(chunk)
            self._waiting_bytes += chunk.size_bytes
        return again
