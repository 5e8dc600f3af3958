"""A payload transport that uses gRPC messages. Payloads of up to 1 MiB are sent inline. Larger
payloads are split into frames of 1 MiB.

Frames are sent before the message that refers to them, and the receiver collects them in a single
buffer. If a large payload were sent as a single message, it would be copied several times, and no
other message could overtake it. The frames of a payload are sent in order, but other messages may
be sent in between.
"""

from __future__ import annotations

import struct

from antiphon.errors import DataLoss
from antiphon.transport.buffer_pool import BufferPool
from antiphon.transport.payload.transport import (
    MAX_PAYLOAD_BYTES,
    Attachment,
    PayloadReceiver,
    PayloadSender,
    Placement,
    Transport,
    WriteMessage,
    descriptor_of,
    placed,
)
from antiphon.transport.settings import LinkSettings
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.blob import Encoding
from antiphon.wire.frames import Frame

NAME = "grpc"
FRAME_BYTES = 1 << 20

_TRANSFER = struct.Struct("<Q")


class FramedSender(PayloadSender):
    """The producer's side. `write` sends a message on the link."""

    name = NAME

    def __init__(self, write: WriteMessage) -> None:
        self._write = write
        self._transfers = 0

    def offer(self) -> stage_pb2.TransportOffer:
        """Return an offer without a descriptor."""
        return stage_pb2.TransportOffer(transport=NAME)

    def proved(self, proof: bytes) -> bool:
        """Always return True. The link itself is proof enough."""
        return True

    def pushes(self, encoding: Encoding) -> bool:
        """Return whether the payload is too large for a single frame."""
        return encoding.size_bytes > FRAME_BYTES

    def place(self, encoding: Encoding) -> Placement:
        """Return a payload that is sent inline, or a transfer whose frames are written by
        `push`.
        """
        size = encoding.size_bytes
        if not self.pushes(encoding):
            return Placement(chunk_pb2.Payload(size_bytes=size, inline=encoding.to_bytes()))
        transfer, self._transfers = self._transfers, self._transfers + 1

        async def push() -> None:
            for index, pieces in enumerate(encoding.frames(FRAME_BYTES)):
                await self._write(Frame(transfer, index * FRAME_BYTES, size, pieces))

        return Placement(placed(NAME, size, _TRANSFER.pack(transfer)), push)


class FramedReceiver(PayloadReceiver):
    """The consumer's side. It receives one transfer at a time, and a new transfer replaces the
    previous one.
    """

    name = NAME

    def __init__(self) -> None:
        self._buffers = BufferPool()
        self._buffer: memoryview | None = None
        self._transfer = self._filled = 0

    def take(self, frame: Frame) -> None:
        """Append a frame. Raises `DataLoss` if it isn't the next frame of the transfer."""
        if not frame.offset_bytes:
            if frame.total_bytes > MAX_PAYLOAD_BYTES:
                raise DataLoss(f"link: a payload of {frame.total_bytes} bytes")
            self._buffer = self._buffers.take(frame.total_bytes)
            self._transfer, self._filled = frame.transfer, 0
        end = frame.offset_bytes + frame.size_bytes
        known = frame.transfer == self._transfer and frame.offset_bytes == self._filled
        if self._buffer is None or not known or end > len(self._buffer):
            raise DataLoss(f"link: a frame of transfer {frame.transfer} is out of place")
        for piece in frame.pieces:
            self._buffer[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)

    async def fetch(self, payload: chunk_pb2.Payload) -> memoryview:
        """Return the received blob. Raises `DataLoss` if it is incomplete."""
        buffer, self._buffer = self._buffer, None
        size = payload.size_bytes
        whole = buffer is not None and len(buffer) == size == self._filled
        (transfer,) = descriptor_of(payload, _TRANSFER)
        if buffer is None or not whole or transfer != self._transfer:
            raise DataLoss(f"link: transfer {transfer} of {size} bytes has not come")
        return buffer


async def _make_sender(settings: LinkSettings, address: str, write: WriteMessage) -> FramedSender:
    return FramedSender(write)


async def _attach(offer: stage_pb2.TransportOffer, settings: LinkSettings) -> Attachment:
    return FramedReceiver(), b""


TRANSPORT = Transport(NAME, _make_sender, _attach)
