"""A payload transport that is based on a process group with two ranks. A group is created for a
single connection of a link.

On CUDA devices, the group uses NCCL. On a CPU, the same code uses Gloo. There is no global process
group. The producer runs a TCP store as the rendezvous and offers its address. The consumer joins
the group, receives a nonce through it, and returns the nonce as proof. By the time the two sides
agree on this transport, it has therefore already transferred data. Payloads are sent one by one.
Their number and size are announced in a message beforehand, so shapes and sizes can vary. The link
stays usable in the meantime, and the chunk is sent once the transfer is complete.

No engine produces or accepts payloads on a device, so every payload would cross the bus two more
times. For this reason, `auto` never offers this transport.

If a transfer fails, the group is broken (see `process_group`). Both sides then drop it, and the
producer offers a new group later. On each side, blocking calls run in order on a single thread.
torch is imported on that thread as well, because the import takes several seconds.
"""

from __future__ import annotations

import asyncio
import enum
import hmac
import logging
import secrets
import socket
import struct
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from antiphon.errors import DataLoss, InvalidArgument
from antiphon.transport.buffer_pool import BufferPool
from antiphon.transport.payload.process_group import (
    CONSUMER,
    GLOO,
    NCCL,
    PRODUCER,
    Group,
    Lane,
    c10d,
    library_for,
)
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
    descriptor_of,
    placed,
)
from antiphon.transport.settings import LinkSettings
from antiphon.transport.thread_work import made_on_thread
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.blob import Encoding

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

NAME = NCCL
"""The name of this transport in settings, even though a CPU uses Gloo instead of NCCL."""

# How long an offer is valid, in seconds. The consumer may need this time to import torch.
OFFERED = timedelta(seconds=60)
# The timeout for requests to the rendezvous, in seconds.
_ANSWER = timedelta(seconds=5)
# How many seconds longer than the producer's send the consumer's receive may take.
SETTLE_S = 2.0
# The timeout in seconds for joining the group.
PROVED_WITHIN_S = 20.0
NONCE_BYTES = 32
_TRANSFER = struct.Struct("<Q")


class CollectiveFallback(enum.StrEnum):
    """The possible reasons for not sending a payload through the group."""

    COLLECTIVE_FAILED = "collective_failed"
    COLLECTIVE_BUSY = "collective_busy"


def _tensor(buffer: memoryview) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.frombuffer(buffer, np.uint8))


class CollectiveSender(PayloadSender):
    """The producer's side. It runs the rendezvous and sends the nonce to the rank that joins.

    `peer_host` is the consumer's host name or address. The offer contains the local address that is
    used to reach it. `write` sends a message on the link. Raises `OSError` or `RuntimeError` if the
    rendezvous can't be created.
    """

    lost = CollectiveFallback.COLLECTIVE_FAILED
    busy = CollectiveFallback.COLLECTIVE_BUSY
    broken = False

    def __init__(self, device: str, peer_host: str, write: WriteMessage) -> None:
        self.name = library_for(device)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._host = _address_towards(peer_host)
        self._store = _served(self._host, 0, is_master=True)
        # Use a separate store here. Otherwise, waiting for the consumer would keep the rendezvous
        # open.
        store = _served(self._host, self._store.port, is_master=False)
        self._group = Group(store, PRODUCER, device, self._host, OFFERED)
        self._write = write
        self._lane = Lane("collective sender")
        nonce = memoryview(bytearray(self._nonce))
        self._proving = self._lane.submit(self._group.send, _tensor(nonce))
        self._proving.add_done_callback(self._note)
        self._buffers = BufferPool()
        self._transfers = 0

    def offer(self) -> stage_pb2.TransportOffer:
        """Return an offer with the address of the rendezvous."""
        rendezvous = f"{self._host}:{self._store.port}".encode()
        return stage_pb2.TransportOffer(transport=self.name, descriptor=rendezvous)

    def proved(self, proof: bytes) -> bool:
        """Return whether the consumer has received the nonce, which is sent only through
        the group.
        """
        return hmac.compare_digest(proof, self._nonce)

    def pushes(self, encoding: Encoding) -> bool:
        """Always return True, because every payload is sent separately."""
        return True

    def place(self, encoding: Encoding) -> Placement:
        """Return a transfer that is announced and sent by `push`. Raises `NotPlaced` if the group
        is broken.
        """
        if self.broken:
            raise NotPlaced(CollectiveFallback.COLLECTIVE_FAILED)
        blob = self._buffers.take(encoding.size_bytes)
        encoding.write_into(blob)
        payload = placed(self.name, encoding.size_bytes, _TRANSFER.pack(self._transfers))
        self._transfers += 1

        async def push() -> None:
            start = stage_pb2.TransferStart(payload=payload)
            await self._write(stage_pb2.LinkRequest(start=start))
            try:
                await asyncio.wrap_future(self._lane.submit(self._group.send, _tensor(blob)))
            except RuntimeError as error:
                self._break()
                raise PayloadLost(CollectiveFallback.COLLECTIVE_FAILED, str(error)) from error

        return Placement(payload, push)

    def close(self) -> None:
        """Leave the group and close the rendezvous."""
        self._break()
        if not self._proving.done() and self._store is not None:
            self._group.let_go(self._store)
        self._store = None
        self._lane.close()

    def _note(self, proving: Future[None]) -> None:
        """Log the reason why the consumer didn't join the group. This runs on the lane."""
        if proving.cancelled() or (error := proving.exception()) is None:
            return
        self.broken = True
        log.info("no process joined the offered process group: %s", error)

    def _break(self) -> None:
        self.broken = True
        self._group.close()


class CollectiveReceiver(PayloadReceiver):
    """The consumer's side."""

    def __init__(self, store: Any, device: str, host: str) -> None:
        self.name = library_for(device)
        self._group = Group(store, CONSUMER, device, host)
        self._lane = Lane("collective receiver")
        self._buffers = BufferPool()
        self._transfer = -1
        self._receiving: asyncio.Future[memoryview] | None = None

    def prove(self) -> bytes:
        """Join the group and return the nonce that was received through it. This blocks. Raises
        `RuntimeError` if it fails.
        """
        try:
            return bytes(self._lane.submit(self._receive, NONCE_BYTES).result(PROVED_WITHIN_S))
        except TimeoutError:
            raise RuntimeError("joining the process group took too long") from None

    def begin(self, payload: chunk_pb2.Payload) -> None:
        """Start receiving an announced transfer. Raises `DataLoss` if its description is
        invalid.
        """
        if payload.size_bytes > MAX_PAYLOAD_BYTES:
            raise DataLoss(f"link: a payload of {payload.size_bytes} bytes")
        (self._transfer,) = descriptor_of(payload, _TRANSFER)
        receiving = self._lane.submit(self._receive, payload.size_bytes)
        self._receiving = asyncio.wrap_future(receiving)
        # If the producer notices a failure first, it never sends the chunk.
        self._receiving.add_done_callback(_note)

    async def fetch(self, payload: chunk_pb2.Payload) -> memoryview:
        """Return the received blob. Raises `PayloadLost` if the transfer failed."""
        (transfer,) = descriptor_of(payload, _TRANSFER)
        receiving, self._receiving = self._receiving, None
        if receiving is None or transfer != self._transfer:
            raise PayloadLost(
                CollectiveFallback.COLLECTIVE_FAILED, f"transfer {transfer} never began"
            )
        try:
            async with asyncio.timeout(SETTLE_S):
                blob = await receiving
        except (RuntimeError, TimeoutError) as error:
            self._group.close()
            raise PayloadLost(CollectiveFallback.COLLECTIVE_FAILED, str(error)) from error
        if len(blob) != payload.size_bytes:
            raise DataLoss(f"link: transfer {transfer} has a different size than it specifies")
        return blob

    def close(self) -> None:
        """Leave the group."""
        self._group.close()
        self._lane.close()

    def _receive(self, size: int) -> memoryview:
        """Receive `size` bytes. This runs on the lane. Raises `RuntimeError` if the
        transfer fails.
        """
        buffer = self._buffers.take(size)
        self._group.receive(_tensor(buffer))
        return buffer


def _note(receiving: asyncio.Future[memoryview]) -> None:
    if not receiving.cancelled() and (error := receiving.exception()) is not None:
        log.info("a collective failed: %s", error)


def join_rendezvous(
    offer: stage_pb2.TransportOffer, device: str
) -> tuple[CollectiveReceiver, bytes]:
    """Return the receiver and its proof. This blocks.

    Raises `OSError`, `RuntimeError` or `ValueError` if the group can't be joined.
    """
    if (library := library_for(device)) != offer.transport:
        raise ValueError(f"this process's device {device} is for {library}")
    host, _, port = offer.descriptor.decode().rpartition(":")
    store = _served(host, int(port), is_master=False)
    receiver = CollectiveReceiver(store, device, _address_towards(host))
    try:
        return receiver, receiver.prove()
    except RuntimeError:
        receiver.close()
        raise


def _served(host: str, port: int, *, is_master: bool) -> Any:
    """Return a rendezvous store, either as its server or as a client. Raises `RuntimeError` if it
    can't be created.
    """
    store = c10d().TCPStore
    return store(host, port, None, is_master=is_master, timeout=_ANSWER, wait_for_workers=False)


def _address_towards(host: str) -> str:
    """Return the local address that is used to reach `host`. This doesn't send anything. Raises
    `OSError` if there is no route.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


async def _make_sender(
    settings: LinkSettings, address: str, write: WriteMessage
) -> CollectiveSender:
    host = address.rpartition(":")[0].strip("[]") or "localhost"
    return await made_on_thread(
        lambda: CollectiveSender(settings.device, host, write), CollectiveSender.close
    )


async def _attach(offer: stage_pb2.TransportOffer, settings: LinkSettings) -> Attachment:
    return await made_on_thread(
        lambda: join_rendezvous(offer, settings.device), lambda joined: joined[0].close()
    )


def _check(settings: LinkSettings) -> None:
    if settings.mutual_tls:
        raise InvalidArgument(
            f"link.transport: {NAME}: can't be used with mutual_tls, because the data is not "
            "encrypted; use auto, shared_memory or grpc",
            field="link.transport",
        )
    try:
        library = library_for(settings.device)
    except (ImportError, RuntimeError) as error:
        raise InvalidArgument(f"link.transport: {NAME}: {error}", field="link.transport") from error
    if settings.device.startswith("cuda") and library != NCCL:
        raise InvalidArgument(
            "link.transport: this build of torch has no NCCL", field="link.transport"
        )


TRANSPORT = Transport(
    NAME,
    _make_sender,
    _attach,
    aliases=frozenset({GLOO}),
    reasons=frozenset(CollectiveFallback),
    by_default=lambda settings: False,
    check=_check,
)
