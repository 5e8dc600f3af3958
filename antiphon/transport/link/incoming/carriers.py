"""Reads the messages of one connection from its stream and its ring, in their original order.

The ring's entries and the stream's messages are both in order. Each entry states how many messages
were sent on the stream before it. An entry waits until all of these messages have been processed. A
message on the stream is processed after the entries that were written before it. They are visible
by then, because the producer writes them before it sends the message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from google.protobuf.message import DecodeError

from antiphon.errors import DataLoss
from antiphon.transport.ring.entries import MOST_AT_ONCE, DamagedRing, EntryReader
from antiphon.transport.ring.offer import attach_ring
from antiphon.wire.checksum import CorruptMessage
from antiphon.wire.frames import CameOnLink, message_from_bytes

Handle = Callable[[CameOnLink], Awaitable[bool]]
"""Processes a message. The result is False if it was the last one of the connection."""

log = logging.getLogger(__name__)


class IncomingCarriers:
    """The stream of a connection, and its ring after `attach`."""

    def __init__(self, stream: AsyncIterator[CameOnLink], handle: Handle) -> None:
        self._stream = stream
        self._handle = handle
        self._turn = asyncio.Lock()
        self._taken = 0
        self._ready = asyncio.Event()
        self._ring: EntryReader | None = None
        self._wakeup_fd = -1

    async def attach(self, offer: bytes) -> bytes:
        """Attach to a ring and return the proof. The result is empty if the ring can't be used."""
        try:
            ring = await attach_ring(offer)
            try:
                asyncio.get_running_loop().add_reader(ring.wakeup_fd, self.notice)
            except OSError:
                ring.close()
                raise
        except (OSError, ValueError) as error:
            log.info("the ring of a link can't be used: %s", error)
            return b""
        self._wakeup_fd = ring.wakeup_fd
        self.use(ring)
        return ring.proof()

    def use(self, ring: EntryReader) -> None:
        """Read this ring from now on."""
        self._ring = ring

    async def read_stream(self) -> None:
        """Process the messages of the stream, until it ends or a message was the last one.

        Raises `DamagedRing` if the memory or a counter was changed.
        """
        async for message in self._stream:
            if not await self.take_message(message):
                return

    async def take_message(self, message: CameOnLink) -> bool:
        """Process a message of the stream, and all entries that are due before or after it. Returns
        False if one of them was the last one of the connection.
        """
        async with self._turn:
            if self._ring is not None:
                self._ring.notice()
            if not (await self._take_ring() and await self._handle(message)):
                return False
            self._taken += 1
            return await self._take_ring()

    async def read_ring(self) -> None:
        """Process the messages of the ring until one of them was the last one.

        Raises `DamagedRing` if the memory or a counter was changed.
        """
        while True:
            await self._ready.wait()
            self._ready.clear()
            if not await self.take_entries():
                return

    async def take_entries(self) -> bool:
        """Process the entries of the ring that are due. Returns False if one was the last one of
        the connection.
        """
        async with self._turn:
            return await self._take_ring()

    def notice(self) -> None:
        """Count what was written to the ring, and wake `read_ring`."""
        assert self._ring is not None
        self._ring.notice()
        self._ready.set()

    def close(self) -> None:
        """Close the ring."""
        if self._ring is not None:
            if self._wakeup_fd >= 0:
                asyncio.get_running_loop().remove_reader(self._wakeup_fd)
            self._ring.close()
            self._ring = None

    async def _take_ring(self) -> bool:
        """Process the entries of the ring that are due. Returns False if one was the last one."""
        if self._ring is None:
            return True
        while due := self._ring.messages(self._taken):
            for raw in due:
                if not await self._handle(_parsed(raw)):
                    return False
            if len(due) == MOST_AT_ONCE:
                # `_handle` doesn't always wait, and other sessions need the event loop as well.
                await asyncio.sleep(0)
        return True


def _parsed(raw: bytes) -> CameOnLink:
    """Parse an entry of the ring. Raises `DamagedRing` if it isn't an intact message."""
    try:
        message = message_from_bytes(raw)
    except (DataLoss, DecodeError):
        message = CorruptMessage()
    if isinstance(message, CorruptMessage):
        raise DamagedRing("ring: a message is damaged")
    return message
