"""A transport as anybody would add one: payloads through a Unix socket.

The offer is the socket's name, the proof a nonce that is read from it. The number and the bytes of
a payload follow its `start` on the link. A socket that breaks is offered anew, and so is one on
which another payload comes than was begun: a `start` may get lost.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets

from antiphon.errors import DataLoss
from antiphon.transport.payload.transport import (
    MAX_PAYLOAD_BYTES,
    Attachment,
    NotPlaced,
    PayloadLost,
    PayloadReceiver,
    PayloadSender,
    Placement,
    Transport,
    WriteMessage,
    placed,
)
from antiphon.transport.settings import LinkSettings
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.blob import Encoding

NAME = "unix_socket"
LOST, BUSY = "socket_lost", "socket_busy"
NONCE_BYTES = 32
NUMBER_BYTES = 8
READ_BYTES = 1 << 20


class SocketSender(PayloadSender):
    """The producer's side: it listens."""

    name, lost, busy = NAME, LOST, BUSY
    broken = False

    def __init__(self, write: WriteMessage, taken_within_s: float) -> None:
        self._write = write
        self._taken_within_s = taken_within_s
        self._socket_name = secrets.token_hex(16)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._server: asyncio.Server | None = None
        self._peer: asyncio.StreamWriter | None = None
        self._transfers = 0

    async def listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._admit, f"\0{self._socket_name}")

    def offer(self) -> stage_pb2.TransportOffer:
        return stage_pb2.TransportOffer(transport=NAME, descriptor=self._socket_name.encode())

    def proved(self, proof: bytes) -> bool:
        return hmac.compare_digest(proof, self._nonce)

    def pushes(self, encoding: Encoding) -> bool:
        return True

    def place(self, encoding: Encoding) -> Placement:
        if self.broken or self._peer is None:
            raise NotPlaced(LOST)
        peer = self._peer
        number = self._transfers.to_bytes(NUMBER_BYTES, "little")
        payload = placed(NAME, encoding.size_bytes, number)
        self._transfers += 1

        async def push() -> None:
            start = stage_pb2.TransferStart(payload=payload)
            await self._write(stage_pb2.LinkRequest(start=start))
            try:
                async with asyncio.timeout(self._taken_within_s):
                    peer.write(number + encoding.to_bytes())
                    await peer.drain()
            except (OSError, TimeoutError) as error:
                self.close()
                raise PayloadLost(LOST, str(error)) from error

        return Placement(payload, push)

    def close(self) -> None:
        self.broken = True
        if self._server is not None:
            self._server.close()
        if self._peer is not None:
            self._peer.close()

    def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Who was let in on the way may come when this is closed already.
        if self._peer is not None or self.broken:
            writer.close()
            return
        self._peer = writer
        writer.write(self._nonce)


class SocketReceiver(PayloadReceiver):
    """The consumer's side: it connects."""

    name = NAME

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._descriptor = b""
        self._reading: asyncio.Task[bytes] | None = None

    def begin(self, payload: chunk_pb2.Payload) -> None:
        if payload.size_bytes > MAX_PAYLOAD_BYTES:
            raise DataLoss(f"link: a payload of {payload.size_bytes} bytes")
        self._descriptor = payload.placed.descriptor
        reading = self._read(self._reading, self._descriptor, payload.size_bytes)
        self._reading = asyncio.create_task(reading)
        self._reading.add_done_callback(lambda read: read.cancelled() or read.exception())

    async def fetch(self, payload: chunk_pb2.Payload) -> memoryview:
        if self._reading is None or payload.placed.descriptor != self._descriptor:
            raise PayloadLost(LOST, "it never began")
        try:
            return memoryview(await self._reading)
        except (OSError, EOFError) as error:
            raise PayloadLost(LOST, str(error)) from error

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._writer.close()

    async def _read(self, before: asyncio.Task[bytes] | None, number: bytes, size: int) -> bytes:
        """The bytes that follow those of the transfer before."""
        if before is not None:
            await before
        if await self._reader.readexactly(NUMBER_BYTES) != number:
            self._writer.close()
            raise ConnectionError("another payload came than was begun")
        return await self._reader.readexactly(size)


async def make_sender(settings: LinkSettings, address: str, write: WriteMessage) -> SocketSender:
    sender = SocketSender(write, settings.answer_within_s)
    await sender.listen()
    return sender


async def attach(offer: stage_pb2.TransportOffer, settings: LinkSettings) -> Attachment:
    name = f"\0{offer.descriptor.decode()}"
    reader, writer = await asyncio.open_unix_connection(name, limit=READ_BYTES)
    try:
        proof = await reader.readexactly(NONCE_BYTES)
    except EOFError as error:
        writer.close()
        raise ConnectionError("the producer let nobody in") from error
    except BaseException:
        writer.close()
        raise
    return SocketReceiver(reader, writer), proof


UNIX_SOCKET = Transport(
    NAME, make_sender, attach, reasons=frozenset({LOST, BUSY}), by_default=lambda settings: False
)
