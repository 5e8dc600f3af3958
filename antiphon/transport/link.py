"""The producer's end of a link: one stream to a downstream stage process.

Chunks of all sessions that are ready at the same time leave as one message: a
gRPC message costs the same CPU whatever it carries. What waits is bounded in
bytes; a chunk that would exceed the bound is refused to its own session, and the
link goes on. When the stream breaks, every chunk that was not sent is lost and
the owner is told once; the next chunk opens a new link.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from antiphon.chunk import Chunk
from antiphon.errors import AntiphonError, ResourceExhausted, Unavailable
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.chunks import chunk_to_proto
from antiphon.wire.convert import error_from_proto
from antiphon.wire.stubs import stage_stub

MAX_BATCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """The producing process, as the hello tells it."""

    host_id: str
    boot_id: str
    role: str


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """What a link tells its owner, on the event loop."""

    refused: Callable[[str, AntiphonError], None]
    lost: Callable[[str, AntiphonError], None]


class OutgoingLink:
    """A live link to `address`. `send_nowait` until it is lost; `close` at the end.

    Raises nothing after construction: failures are told through `LinkEvents`.
    """

    def __init__(
        self, address: str, identity: LinkIdentity, events: LinkEvents, *, limit_bytes: int
    ) -> None:
        self.address = address
        self.link_id = uuid.uuid4().hex
        self._identity = identity
        self._events = events
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[chunk_pb2.Chunk, int]] = deque()
        self._waiting_bytes = 0
        self._ready = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"link to {address}")

    def send_nowait(self, chunk: Chunk) -> None:
        """Queue a chunk. Raises `ResourceExhausted` when too much waits already."""
        proto = chunk_to_proto(chunk)
        size = proto.payload.size_bytes
        if self._waiting and self._waiting_bytes + size > self._limit_bytes:
            raise ResourceExhausted(
                f"{chunk.edge}: {self._limit_bytes} bytes wait on the link to {self.address}",
                edge=chunk.edge,
            )
        self._waiting.append((proto, size))
        self._waiting_bytes += size
        self._ready.set()

    async def close(self) -> None:
        """Drop what waits and close the stream; nobody is told."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        """Own the channel: connect, say hello, pump both ways until something breaks."""
        async with grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS) as channel:
            stream = stage_stub(channel).Link()
            try:
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(self._write(stream))
                    pumps.create_task(self._read(stream))
            except* (grpc.RpcError, asyncio.InvalidStateError) as failures:
                self._tell_lost(failures.exceptions[0])

    def _tell_lost(self, cause: BaseException) -> None:
        detail = cause.details() if isinstance(cause, grpc.aio.AioRpcError) else str(cause)
        error = Unavailable(f"{self._identity.role}: the link to {self.address} was lost: {detail}")
        self._events.lost(self.address, error)

    async def _write(self, stream: _LinkStream) -> None:
        await stream.write(stage_pb2.LinkRequest(hello=self._hello()))
        while True:
            await self._ready.wait()
            await stream.write(stage_pb2.LinkRequest(batch=self._take_batch()))

    async def _read(self, stream: _LinkStream) -> None:
        async for response in stream:
            if response.HasField("refusal"):
                refusal = response.refusal
                self._events.refused(refusal.session_id, error_from_proto(refusal.error))
        raise asyncio.InvalidStateError("the peer closed the link")

    def _hello(self) -> stage_pb2.LinkHello:
        return stage_pb2.LinkHello(
            link_id=self.link_id,
            host_id=self._identity.host_id,
            boot_id=self._identity.boot_id,
            role=self._identity.role,
            offers=[stage_pb2.TransportOffer(transport="grpc")],
        )

    def _take_batch(self) -> stage_pb2.ChunkBatch:
        """What waits, at least one chunk and about `MAX_BATCH_BYTES`."""
        batch = stage_pb2.ChunkBatch()
        taken = 0
        while self._waiting and (not batch.chunks or taken < MAX_BATCH_BYTES):
            proto, size = self._waiting.popleft()
            batch.chunks.append(proto)
            taken += size
        self._waiting_bytes -= taken
        if not self._waiting:
            self._ready.clear()
        return batch


_LinkStream = grpc.aio.StreamStreamCall[stage_pb2.LinkRequest, stage_pb2.LinkResponse]


class LinkPool:
    """One link per downstream process, opened by the first chunk that goes there."""

    def __init__(self, identity: LinkIdentity, events: LinkEvents, *, limit_bytes: int) -> None:
        self._identity = identity
        self._events = LinkEvents(events.refused, self._lost)
        self._owner = events
        self._limit_bytes = limit_bytes
        self._links: dict[str, OutgoingLink] = {}

    def send_nowait(self, address: str, chunk: Chunk) -> None:
        """Queue a chunk on the link to `address`. Raises `ResourceExhausted`."""
        link = self._links.get(address)
        if link is None:
            link = OutgoingLink(
                address, self._identity, self._events, limit_bytes=self._limit_bytes
            )
            self._links[address] = link
        link.send_nowait(chunk)

    async def close(self) -> None:
        """Close all links."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close()

    def _lost(self, address: str, error: AntiphonError) -> None:
        self._links.pop(address, None)
        self._owner.lost(address, error)
