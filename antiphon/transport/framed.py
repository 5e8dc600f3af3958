"""Payloads inside the gRPC messages: inline, or from 1 MiB on as frames of 1 MiB.

Frames follow the message that announces them and are received into one buffer that
was reserved for them; whole messages of many MiB would be copied several times over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from antiphon.errors import DataLoss
from antiphon.transport.buffer_pool import BufferPool
from antiphon.transport.payload import MAX_PAYLOAD_BYTES, Placement
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.blob import Encoding
from antiphon.wire.frames import Frame

NAME = "grpc"
FRAME_BYTES = 1 << 20

WriteFrame = Callable[[Frame], Awaitable[None]]
ReadFrame = Callable[[], Awaitable[Frame]]


class FramedSender:
    """The producer's side; `write` puts a frame on the link."""

    name = NAME
    broken = False

    def __init__(self, write: WriteFrame) -> None:
        self._write = write
        self._transfers = 0

    def offer(self) -> stage_pb2.TransportOffer:
        """Nothing to attach to."""
        return stage_pb2.TransportOffer(transport=NAME)

    def proved(self, proof: bytes) -> bool:
        """The link itself is the proof."""
        return True

    def place(self, encoding: Encoding) -> Placement:
        """Inline, or as a transfer whose frames `push` writes."""
        size = encoding.size_bytes
        if size <= FRAME_BYTES:
            return Placement(chunk_pb2.Payload(size_bytes=size, inline=encoding.to_bytes()))
        transfer, self._transfers = self._transfers, self._transfers + 1
        framed = chunk_pb2.FramedTransfer(transfer=transfer, frames=-(-size // FRAME_BYTES))

        async def push() -> None:
            for index, pieces in enumerate(encoding.frames(FRAME_BYTES)):
                await self._write(Frame(transfer, index * FRAME_BYTES, pieces))

        return Placement(chunk_pb2.Payload(size_bytes=size, framed=framed), push)

    def release(self, slots: Iterable[int]) -> None:
        """There are no slots."""

    def close(self) -> None:
        """Nothing is held."""


class FramedReceiver:
    """The consumer's side; `read` takes the next frame off the link."""

    name = NAME

    def __init__(self, read: ReadFrame) -> None:
        self._read = read
        self._buffers = BufferPool()

    async def fetch(self, payload: chunk_pb2.Payload) -> memoryview:
        """The blob, its frames put together. Raises `DataLoss` when they do not fit."""
        size, framed = payload.size_bytes, payload.framed
        if size > MAX_PAYLOAD_BYTES or framed.frames != -(-size // FRAME_BYTES):
            raise DataLoss(f"a payload of {size} bytes in {framed.frames} frames")
        buffer = self._buffers.take(size)
        for index in range(framed.frames):
            frame = await self._read()
            offset = index * FRAME_BYTES
            expected = min(FRAME_BYTES, size - offset)
            if (frame.transfer, frame.offset_bytes, frame.size_bytes) != (
                framed.transfer,
                offset,
                expected,
            ):
                raise DataLoss(f"frame {index} of transfer {framed.transfer} is another one")
            for piece in frame.pieces:
                buffer[offset : offset + len(piece)] = piece
                offset += len(piece)
        return buffer

    def close(self) -> None:
        """Nothing is held."""
