"""The chunks of a link that the consumer has not acknowledged, numbered; pure.

A chunk keeps its number when it is sent again. What has been sent stays until it
is acknowledged; both what waits and what was sent are bounded in bytes, and one
chunk may always go alone, however large it is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from antiphon.errors import ResourceExhausted
from antiphon.v1 import chunk_pb2
from antiphon.wire.blob import Encoding


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A chunk on its way: its address, and its tensors where it has any."""

    address: chunk_pb2.Chunk
    encoding: Encoding | None

    @property
    def size_bytes(self) -> int:
        """Bytes of its blob."""
        return self.encoding.size_bytes if self.encoding else 0


class SendLog:
    """Chunks from the first that is not acknowledged to the last that waits."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._chunks: deque[Outgoing] = deque()
        self._first = 0
        self._sent = 0
        self._waiting_bytes = 0
        self._sent_bytes = 0

    @property
    def acknowledged(self) -> int:
        """How many chunks the consumer has for certain."""
        return self._first

    @property
    def sendable(self) -> bool:
        """Whether something waits and the unacknowledged bytes leave room for it."""
        waits = self._sent < len(self._chunks)
        return waits and (not self._sent or self._sent_bytes < self._limit_bytes)

    def append(self, chunk: Outgoing) -> None:
        """A chunk to send. Raises `ResourceExhausted` when too much waits already."""
        waits = self._sent < len(self._chunks)
        if waits and self._waiting_bytes + chunk.size_bytes > self._limit_bytes:
            edge = chunk.address.edge
            raise ResourceExhausted(
                f"{edge}: {self._limit_bytes} bytes wait on the link", edge=edge
            )
        self._chunks.append(chunk)
        self._waiting_bytes += chunk.size_bytes

    def take(self) -> tuple[int, Outgoing]:
        """The next chunk to send and its number; only when `sendable`."""
        chunk = self._chunks[self._sent]
        number = self._first + self._sent
        self._sent += 1
        self._waiting_bytes -= chunk.size_bytes
        self._sent_bytes += chunk.size_bytes
        return number, chunk

    def acknowledge(self, count: int) -> None:
        """The consumer has the first `count` chunks of the link."""
        while self._first < count and self._sent:
            self._sent_bytes -= self._chunks.popleft().size_bytes
            self._first += 1
            self._sent -= 1

    def rewind(self, number: int) -> int:
        """Send again from a number on; how many were sent before and will be again."""
        again = 0
        while self._sent and self._first + self._sent > number:
            self._sent -= 1
            again += 1
            size = self._chunks[self._sent].size_bytes
            self._sent_bytes -= size
            self._waiting_bytes += size
        return again
