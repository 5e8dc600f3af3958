"""Writes the messages of one connection, either to a ring or to the stream.

On the same host, batches of chunks are written to a ring in shared memory (`transport/ring`), which
costs a fraction of a message on a stream. Everything else is sent on the stream, and so is a batch
that doesn't fit into the ring. The consumer still receives all messages in the order in which they
were written, because each entry of the ring states how many messages were sent on the stream before
it. The chunks, their numbers and their acknowledgements are the same on both carriers.
"""

from __future__ import annotations

import asyncio
import logging

from antiphon.transport.ring.entries import DamagedRing, EntryWriter
from antiphon.transport.ring.messages import MAX_MESSAGE_BYTES
from antiphon.transport.ring.offer import OfferedRing
from antiphon.transport.settings import LinkSettings, LinkState
from antiphon.v1 import stage_pb2
from antiphon.wire.checksum import CHECKSUM_BYTES
from antiphon.wire.frames import LinkCall, LinkMessage, message_to_bytes

log = logging.getLogger(__name__)


class OutgoingCarriers:
    """The stream of a connection, and its ring if there is one."""

    def __init__(self, stream: LinkCall, settings: LinkSettings, state: LinkState) -> None:
        self._stream = stream
        self._state = state
        self._writing = asyncio.Lock()
        self._on_stream = 0
        self._offered = _offered_ring() if settings.ring else None
        self._ring: EntryWriter | None = None
        self._is_usable = False

    def offer(self) -> bytes:
        """Return the offer of the ring, which is empty if there is none."""
        return b"" if self._offered is None else self._offered.offer()

    def accepted(self, proof: bytes) -> None:
        """Use the ring if the consumer has proved that it can read it."""
        if self._offered is not None:
            ring, self._offered = self._offered.accepted(proof), None
            if ring is not None:
                self.use(ring)

    def use(self, ring: EntryWriter) -> None:
        """Write batches to this ring from now on."""
        self._ring, self._is_usable = ring, True

    async def write(self, message: LinkMessage) -> None:
        """Write a message. Batches take turns with the frames of pushed payloads."""
        async with self._writing:
            is_batch = isinstance(message, stage_pb2.LinkRequest) and message.HasField("batch")
            if is_batch and self._is_usable and self._wrote_to_ring(message):
                return
            # Count the message now, because it may be cancelled after it has been sent. In this
            # case, the connection ends.
            self._on_stream += 1
            await self._stream.write(message)

    def close(self) -> None:
        """Close the ring. The consumer can still read what was written."""
        if self._offered is not None:
            self._offered.close()
        if self._ring is not None:
            self._ring.close()
        self._offered = self._ring = None
        self._is_usable = False

    def _wrote_to_ring(self, message: LinkMessage) -> bool:
        """Return whether the message could be written to the ring."""
        assert self._ring is not None
        assert isinstance(message, stage_pb2.LinkRequest)
        if message.ByteSize() + CHECKSUM_BYTES > MAX_MESSAGE_BYTES:
            return False
        data = message_to_bytes(message)
        try:
            if not self._ring.write(data, self._on_stream):
                return False
        except DamagedRing as error:
            log.warning("link to %s: %s", self._state.peer_address, error.message)
            self._is_usable = False
            return False
        self._state.count_message(len(data), "ring")
        return True


def _offered_ring() -> OfferedRing | None:
    """Return a new ring, or None if this system doesn't support it."""
    try:
        return OfferedRing()
    except OSError as error:
        log.info("no ring can be offered: %s", error)
        return None
