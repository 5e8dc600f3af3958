"""The stream and the ring of a simulated link, with the real code at both ends.

Both carriers lead from the producer to the consumer, and each has delays of its own. Messages on
the stream wait in a queue. Entries of the ring are in memory as soon as they have been written, but
the consumer may notice them later. The ring is small, so that it is often full. Its counters are
numbers instead of eventfds.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar, cast

from antiphon.transport.link.incoming.carriers import Handle, IncomingCarriers
from antiphon.transport.link.outgoing.carriers import OutgoingCarriers
from antiphon.transport.ring.entries import DamagedRing, EntryReader, EntryWriter
from antiphon.transport.settings import LinkSettings, LinkState
from antiphon.wire.frames import CameOnLink, LinkCall, LinkMessage
from antiphon_tools.simulation.network import Gone, Violation

RING_BYTES = 288
"""Enough for a few chunks. The longest ones are too large for the ring."""
SETTINGS = LinkSettings("auto", "cpu", slab_bytes=1, resume_window_s=1.0, ring=False)
"""The ring isn't offered, because both ends get it from the simulation."""
Value = TypeVar("Value")


class SimulatedCounter:
    """A counter of a ring."""

    def __init__(self) -> None:
        self.value = 0
        self.is_blocking = False

    def take(self) -> int:
        """Return the value and reset it."""
        value, self.value = self.value, 0
        return value

    def add(self, size: int) -> None:
        """Add to the value. Raises `DamagedRing` if the counter was made blocking."""
        if self.is_blocking:
            raise DamagedRing("ring: a counter is blocking")
        self.value += size


class SimulatedRing:
    """The memory and the counters of a ring, which can be damaged."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, RING_BYTES)
        self.written, self.freed = SimulatedCounter(), SimulatedCounter()
        self.is_damaged = False
        self.unread: deque[tuple[int, int]] = deque()
        """The position and the size of each entry that wasn't read."""

    def damages(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield the ways in which the ring can be damaged."""
        if self.is_damaged:
            return
        if self.unread:
            yield "has a damaged header", lambda: self._flip(self.unread[0][0])
            yield "has a damaged message", lambda: self._flip(sum(self.unread[-1]) - 1)
        yield "has a wrong count of written bytes", lambda: self._count(self.written, 3)
        yield "has a wrong count of freed bytes", lambda: self._count(self.freed, 2 * RING_BYTES)
        yield "has a blocking count of written bytes", lambda: self._block(self.written)
        yield "has a blocking count of freed bytes", lambda: self._block(self.freed)

    def _flip(self, position: int) -> None:
        self.is_damaged = True
        self.memory[position % RING_BYTES] ^= 1

    def _count(self, counter: SimulatedCounter, size: int) -> None:
        self.is_damaged = True
        counter.value += size

    def _block(self, counter: SimulatedCounter) -> None:
        self.is_damaged = counter.is_blocking = True


class _CheckedWriter(EntryWriter):
    def __init__(self, ring: SimulatedRing) -> None:
        super().__init__(ring.memory, ring.written, ring.freed)
        self._ring = ring
        self._end = 0

    def write(self, message: bytes, after: int) -> bool:
        before = self._ring.written.value
        try:
            written = super().write(message, after)
        except DamagedRing as error:
            if not self._ring.is_damaged:
                raise Violation(f"an intact ring was given up: {error}") from None
            raise
        if written:
            size = self._ring.written.value - before
            self._ring.unread.append((self._end, size))
            self._end += size
        return written


class _CheckedReader(EntryReader):
    def __init__(self, ring: SimulatedRing) -> None:
        super().__init__(ring.memory, ring.written, ring.freed)
        self._ring = ring

    def messages(self, taken: int) -> list[bytes]:
        try:
            found = super().messages(taken)
        except DamagedRing as error:
            if not self._ring.is_damaged:
                raise Violation(f"an intact ring counts as damaged: {error}") from None
            raise
        for _ in found:
            self._ring.unread.popleft()
        return found


class _Stream:
    """The stream as the producer sees it."""

    def __init__(self, on_the_way: deque[CameOnLink | Gone]) -> None:
        self._on_the_way = on_the_way

    async def write(self, message: LinkMessage) -> None:
        self._on_the_way.append(message)


class TwoCarriers:
    """The carriers of one connection. The consumer passes each message to `handle`.

    `stream` contains the messages of the stream that haven't arrived.
    """

    def __init__(self, stream: deque[CameOnLink | Gone], handle: Handle, *, has_ring: bool) -> None:
        self.state = LinkState(outgoing=True)
        self.ring = SimulatedRing() if has_ring else None
        self._outgoing = OutgoingCarriers(cast(LinkCall, _Stream(stream)), SETTINGS, self.state)
        self._incoming = IncomingCarriers(_nothing(), handle)
        if self.ring is not None:
            self._outgoing.use(_CheckedWriter(self.ring))
            self._incoming.use(_CheckedReader(self.ring))

    @property
    def wakes_reader(self) -> bool:
        """Whether something was written to the ring that its reader hasn't noticed."""
        return self.ring is not None and self.ring.written.value > 0

    def write(self, message: LinkMessage) -> None:
        """Write a message from the producer to one of the carriers."""
        _finished(self._outgoing.write(message))

    def arrive(self, message: CameOnLink) -> None:
        """Let the consumer process a message of the stream. Raises `DamagedRing`."""
        _finished(self._incoming.take_message(message))

    def read_ring(self) -> None:
        """Let the consumer notice the entries of the ring. Raises `DamagedRing`."""
        self._incoming.notice()
        _finished(self._incoming.take_entries())


async def _nothing() -> AsyncIterator[CameOnLink]:
    messages: tuple[CameOnLink, ...] = ()
    for message in messages:
        yield message


def _finished(steps: Coroutine[Any, Any, Value]) -> Value:
    """Return the result of a coroutine that yields to other tasks, but doesn't wait for any."""
    while True:
        try:
            waited_for = steps.send(None)
        except StopIteration as done:
            return cast(Value, done.value)
        assert waited_for is None, "a carrier waits"
