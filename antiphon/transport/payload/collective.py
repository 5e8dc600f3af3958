"""Payloads through a process group of two ranks, made for one connection of a link.

NCCL between CUDA devices; Gloo on CPU is the same code. There is no global process
group: a TCP store of the producer's is the rendezvous, and the nonce lies in it.
The ranks join when the first payload wants them to. A payload is one send of bytes
whose number and size a message has announced, so that shapes and sizes may vary; the
link goes on meanwhile, and its chunk follows when the send is done.

The offer is the rendezvous' address, the proof the nonce that lies there.

Neither library can take a transfer back. What fails breaks the group: both sides
drop it, which the other notices at once, and the producer offers a new one later.
Blocking calls run on a thread of their own, one per side, in order; torch, whose import
takes seconds, is imported there too.

Gloo joins on one more thread. When it times out while it waits for the other rank to connect, it
frees what its listener will still use if that rank connects late: a segmentation fault. So its
own timeout is long, and whoever waits for the thread gives up earlier; a group that is joined
after that is dropped.
"""

from __future__ import annotations

import asyncio
import enum
import hmac
import logging
import secrets
import socket
import struct
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from antiphon.errors import DataLoss, InvalidArgument
from antiphon.transport.buffer_pool import BufferPool
from antiphon.transport.payload.aside import made_aside
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
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.blob import Encoding

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

NCCL, GLOO = "nccl", "gloo"
NAME = NCCL
"""For settings: Gloo stands in for NCCL on a CPU."""

PRODUCER, CONSUMER = 0, 1
TIMEOUT_S = 5.0
# How long Gloo may take to join: longer than a rank can be late that still means to come.
JOIN_S = 600.0
# How much longer than the producer's send the consumer's receive may take.
SETTLE_S = 2.0
NONCE_BYTES = 32
_TIMEOUT = timedelta(seconds=TIMEOUT_S)
_TRANSFER = struct.Struct("<Q")


class CollectiveFallback(enum.StrEnum):
    """Why a payload does not come through the group."""

    COLLECTIVE_FAILED = "collective_failed"
    COLLECTIVE_BUSY = "collective_busy"


def library_for(device: str) -> str:
    """Whichever library moves tensors between processes with this device."""
    import torch

    on_cuda = torch.device(device).type == "cuda"
    return NCCL if on_cuda and torch.distributed.is_nccl_available() else GLOO


def _c10d() -> Any:
    """`torch.distributed`: its stubs do not export what is used of it here."""
    import torch

    return torch.distributed


def _tensor(buffer: memoryview) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.frombuffer(buffer, np.uint8))


class _Group:
    """One rank: joins when it is first used. All methods but `close` block."""

    def __init__(self, store: Any, rank: int, device: str, host: str) -> None:
        self._store = store
        self._rank = rank
        self._device = device
        self._host = host
        self._joined: Any = None
        self._closed = False

    def send(self, blob: torch.Tensor) -> None:
        """Send bytes to the other rank. Raises `RuntimeError`."""
        self._group().send([blob.to(self._device)], CONSUMER, 0).wait(_TIMEOUT)

    def receive(self, buffer: torch.Tensor) -> None:
        """Fill a buffer with what the other rank sends. Raises `RuntimeError`."""
        here = buffer.to(self._device)
        self._group().recv([here], PRODUCER, 0).wait(_TIMEOUT)
        if here is not buffer:
            buffer.copy_(here)

    def close(self) -> None:
        """Leave; the other rank's transfers fail at once."""
        if self._joined is not None and library_for(self._device) == NCCL:
            self._joined.abort()
        # The store's sockets go with it, and this may be part of a cycle.
        self._joined, self._store, self._closed = None, None, True

    def _group(self) -> Any:
        """The group, joined. Who has failed to once stays out: the store keeps stale addresses."""
        store = self._store
        if self._closed or store is None:
            raise RuntimeError("the process group has been left")
        if self._joined is None:
            try:
                joined = self._join(store)
            except RuntimeError:
                self.close()
                raise
            if self._closed:
                raise RuntimeError("the process group was left while it was joined")
            self._joined = joined
        return self._joined

    def _join(self, store: Any) -> Any:
        if library_for(self._device) == NCCL:
            import torch

            torch.cuda.set_device(self._device)
            options = _c10d().ProcessGroupNCCL.Options()
            options._timeout = _TIMEOUT
            return _c10d().ProcessGroupNCCL(store, self._rank, 2, options)
        # Who has not even begun is waited for here, where a time-out frees nothing.
        store.set(_here(self._rank), b"")
        store.wait([_here(1 - self._rank)], _TIMEOUT)
        joining: Future[Any] = Future()
        arguments = (joining, store, self._rank, self._host)
        Thread(target=_join_gloo, args=arguments, name="collective join", daemon=True).start()
        try:
            return joining.result(_TIMEOUT.total_seconds())
        except TimeoutError:
            raise RuntimeError("the other rank stopped while it joined") from None


def _here(rank: int) -> str:
    """Where a rank says in the store that it joins."""
    return f"here/{rank}"


def _join_gloo(joining: Future[Any], store: Any, rank: int, host: str) -> None:
    kind = _c10d().ProcessGroupGloo
    options = kind._Options()
    options._timeout = timedelta(seconds=JOIN_S)
    try:
        options._devices = [kind.create_device(hostname=host)]
        joining.set_result(kind(store, rank, 2, options))
    except Exception as error:
        # Without its traceback, which would keep the device, and so the listener.
        joining.set_exception(RuntimeError(str(error)))


class CollectiveSender(PayloadSender):
    """The producer's side; serves the rendezvous.

    `peer_host` is the consumer's host name or address: the local address towards it
    is the one that is offered; `write` puts a message on the link. Raises `OSError`
    or `RuntimeError`.
    """

    lost = CollectiveFallback.COLLECTIVE_FAILED
    busy = CollectiveFallback.COLLECTIVE_BUSY
    broken = False

    def __init__(self, device: str, peer_host: str, write: WriteMessage) -> None:
        self.name = library_for(device)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._host = _address_towards(peer_host)
        self._store = _c10d().TCPStore(
            self._host, 0, None, is_master=True, timeout=_TIMEOUT, wait_for_workers=False
        )
        self._store.set("nonce", self._nonce.hex())
        self._group = _Group(self._store, PRODUCER, device, self._host)
        self._write = write
        self._thread = ThreadPoolExecutor(1, "collective sender")
        self._buffers = BufferPool()
        self._transfers = 0

    def offer(self) -> stage_pb2.TransportOffer:
        """Where the rendezvous is."""
        rendezvous = f"{self._host}:{self._store.port}".encode()
        return stage_pb2.TransportOffer(transport=self.name, descriptor=rendezvous)

    def proved(self, proof: bytes) -> bool:
        """Whether the consumer has reached the rendezvous."""
        return hmac.compare_digest(proof, self._nonce)

    def pushes(self, encoding: Encoding) -> bool:
        """Always."""
        return True

    def place(self, encoding: Encoding) -> Placement:
        """A transfer that `push` announces and makes. Raises `NotPlaced`: the group is broken."""
        if self.broken:
            raise NotPlaced(CollectiveFallback.COLLECTIVE_FAILED)
        blob = self._buffers.take(encoding.size_bytes)
        encoding.write_into(blob)
        payload = placed(self.name, encoding.size_bytes, _TRANSFER.pack(self._transfers))
        self._transfers += 1

        async def push() -> None:
            loop = asyncio.get_running_loop()
            start = stage_pb2.TransferStart(payload=payload)
            await self._write(stage_pb2.LinkRequest(start=start))
            try:
                await loop.run_in_executor(self._thread, self._group.send, _tensor(blob))
            except RuntimeError as error:
                self._break()
                raise PayloadLost(CollectiveFallback.COLLECTIVE_FAILED, str(error)) from error

        return Placement(payload, push)

    def close(self) -> None:
        """Leave the group and end the rendezvous."""
        self._break()
        self._store = None
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _break(self) -> None:
        self.broken = True
        self._group.close()


class CollectiveReceiver(PayloadReceiver):
    """The consumer's side."""

    def __init__(self, store: Any, device: str, host: str) -> None:
        self.name = library_for(device)
        self._group = _Group(store, CONSUMER, device, host)
        self._thread = ThreadPoolExecutor(1, "collective receiver")
        self._buffers = BufferPool()
        self._transfer = -1
        self._receiving: asyncio.Future[memoryview] | None = None

    def begin(self, payload: chunk_pb2.Payload) -> None:
        """Receive what the producer has begun to send. Raises `DataLoss`."""
        if payload.size_bytes > MAX_PAYLOAD_BYTES:
            raise DataLoss(f"link: a payload of {payload.size_bytes} bytes")
        loop = asyncio.get_running_loop()
        (self._transfer,) = descriptor_of(payload, _TRANSFER)
        self._receiving = loop.run_in_executor(self._thread, self._receive, payload.size_bytes)
        # The producer may have noticed first, and never ask for it.
        self._receiving.add_done_callback(_note)

    async def fetch(self, payload: chunk_pb2.Payload) -> memoryview:
        """The blob that the producer has sent. Raises `PayloadLost`."""
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
            raise DataLoss(f"link: transfer {transfer} has another size than it says")
        return blob

    def close(self) -> None:
        """Leave the group."""
        self._group.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _receive(self, size: int) -> memoryview:
        """On the receiver's thread. Raises `RuntimeError`."""
        buffer = self._buffers.take(size)
        self._group.receive(_tensor(buffer))
        return buffer


def _note(receiving: asyncio.Future[memoryview]) -> None:
    if not receiving.cancelled() and (error := receiving.exception()) is not None:
        log.info("a collective failed: %s", error)


def join_rendezvous(
    offer: stage_pb2.TransportOffer, device: str
) -> tuple[CollectiveReceiver, bytes]:
    """The receiver and the proof. Blocks; raises `OSError`, `RuntimeError` or `ValueError`."""
    if (library := library_for(device)) != offer.transport:
        raise ValueError(f"this process's device {device} is for {library}")
    host, _, port = offer.descriptor.decode().rpartition(":")
    store = _c10d().TCPStore(host, int(port), None, is_master=False, timeout=_TIMEOUT)
    proof = bytes.fromhex(store.get("nonce").decode())
    return CollectiveReceiver(store, device, _address_towards(host)), proof


def _address_towards(host: str) -> str:
    """This host's address on the route to another. Sends nothing. Raises `OSError`."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


async def _make_sender(
    settings: LinkSettings, address: str, write: WriteMessage
) -> CollectiveSender:
    host = address.rpartition(":")[0].strip("[]") or "localhost"
    return await made_aside(
        lambda: CollectiveSender(settings.device, host, write), CollectiveSender.close
    )


async def _attach(offer: stage_pb2.TransportOffer, settings: LinkSettings) -> Attachment:
    return await made_aside(
        lambda: join_rendezvous(offer, settings.device), lambda joined: joined[0].close()
    )


def _check(settings: LinkSettings) -> None:
    try:
        library = library_for(settings.device)
    except (ImportError, RuntimeError) as error:
        raise InvalidArgument(f"transport: {NAME}: {error}", field="transport") from error
    if settings.device.startswith("cuda") and library != NCCL:
        raise InvalidArgument("transport: this torch has no NCCL", field="transport")


TRANSPORT = Transport(
    NAME,
    _make_sender,
    _attach,
    aliases=frozenset({GLOO}),
    reasons=frozenset(CollectiveFallback),
    by_default=lambda settings: settings.device.startswith("cuda"),
    check=_check,
)
