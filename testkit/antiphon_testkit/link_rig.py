"""Both ends of a link over real gRPC, with a connection that can be cut.

The consumer checks and records chunks, whose contents identify them. The two ends either run on the
same event loop, or the far end runs in a separate process (`antiphon_testkit.link_peer`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import grpc
import numpy as np

from antiphon.errors import AntiphonError, NotImplementedYet
from antiphon.transport.channel import SERVER_OPTIONS
from antiphon.transport.link.incoming.connection import LinkContext
from antiphon.transport.link.incoming.link import IncomingLink
from antiphon.transport.link.incoming.links import IncomingEvents, IncomingLinks
from antiphon.transport.link.outgoing.link import LinkEvents, OutgoingLink
from antiphon.transport.link.outgoing.links import connect_in_clear
from antiphon.transport.payload.registry import Attach, MakeSenders, attach_best, make_senders
from antiphon.transport.settings import LinkIdentity, LinkSettings, Peer
from antiphon.v1 import chunk_pb2, stage_pb2_grpc
from antiphon.values.chunk import Chunk
from antiphon.wire.frames import CameOnLink, add_stage_service
from antiphon.wire.status import abort
from antiphon_testkit.cut_wire import CutWire

Item = TypeVar("Item")
AnyContext = grpc.aio.ServicerContext[Any, Any]

EDGE = "rows"
PRODUCER = LinkIdentity("host", "producer-boot", "producer", name="producer-0")


def marked_chunk(session_id: str, sequence: int, size: int) -> Chunk:
    """Return a chunk of `size` bytes whose contents identify it. If `size` is 0, the chunk has no
    payload.
    """
    tensors = {}
    if size:
        row = np.full(size, sequence % 251, np.uint8)
        row[:8] = np.frombuffer(np.uint64(sequence).tobytes(), np.uint8)[: min(size, 8)]
        tensors = {EDGE: row}
    return Chunk(session_id, EDGE, sequence=sequence, tensors=tensors)


def check_marks(chunk: Chunk) -> None:
    """Raise `AssertionError` if the contents don't match the chunk."""
    row = chunk.tensors.get(EDGE)
    if row is not None:
        expected = np.uint64(chunk.sequence).tobytes()[: len(row)]
        assert row[:8].tobytes() == expected, f"chunk {chunk.sequence} has another's bytes"
        assert (row[8:] == chunk.sequence % 251).all(), f"chunk {chunk.sequence} is damaged"


class Changes(asyncio.Event):
    """An event that is set whenever its owner changes."""

    async def wait_until(self, condition: Callable[[], object], timeout_s: float = 120.0) -> None:
        """Wait until the condition is true. It is checked after each change. Raises
        `TimeoutError`.
        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                self.clear()
                await self.wait()


@dataclass(slots=True)
class Received:
    """The chunks that a consumer received, and the events of its links."""

    sequences: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0
    faults: list[BaseException] = field(default_factory=list)
    hold: bool = False
    held: list[Chunk] = field(default_factory=list)
    finished: int = 0
    suspended: int = 0
    lost: int = 0
    changed: Changes = field(default_factory=Changes)

    def take(self, chunks: Sequence[Chunk]) -> None:
        """Check and record chunks. If `hold` is set, they are also kept."""
        for chunk in chunks:
            try:
                check_marks(chunk)
            except AssertionError as fault:
                self.faults.append(fault)
            self.sequences[chunk.session_id].append(chunk.sequence)
            self.count += 1
            self.finished += chunk.segment_finished
            if self.hold:
                self.held.append(chunk)
        self.changed.set()

    async def wait_count(self, count: int, timeout_s: float = 120.0) -> None:
        """Wait until `count` chunks have arrived. Raises `TimeoutError`."""
        await self.changed.wait_until(lambda: self.count >= count, timeout_s)

    def check_complete(self, session_id: str, count: int) -> None:
        """Check that every chunk has arrived exactly once, in order and undamaged."""
        assert not self.faults, self.faults[0]
        assert self.sequences[session_id] == list(range(count))


class LinkConsumer(stage_pb2_grpc.StageServiceServicer):
    """A server that only receives chunks."""

    def __init__(
        self,
        settings: LinkSettings,
        attach: Attach,
        *,
        boot_id: str,
        received: Received | None = None,
    ) -> None:
        self.received = received or Received()
        self.opened: list[IncomingLink] = []
        events = IncomingEvents(
            opened=self.opened.append,
            arrived=lambda chunks, _: self.received.take(chunks),
            failed=self._failed,
            suspended=self._suspended,
            lost=self._lost,
        )
        identity = LinkIdentity("host", boot_id, "consumer", name="consumer-0")
        self.links = IncomingLinks(identity, settings, events, attach=attach)

    async def Link(  # type: ignore[override]
        self, requests: AsyncIterable[CameOnLink], context: LinkContext
    ) -> None:
        """Serve one link."""
        await self.links.serve(requests, context)

    async def Describe(self, request: object, context: AnyContext) -> NoReturn:
        """Not implemented, because there is no stage."""
        await abort(context, NotImplementedYet("a link's end only"))

    async def RunSession(self, requests: object, context: AnyContext) -> NoReturn:  # type: ignore[override]
        """Not implemented, because there is no stage."""
        await abort(context, NotImplementedYet("a link's end only"))

    async def RunSessions(self, requests: object, context: AnyContext) -> NoReturn:  # type: ignore[override]
        """Reject the call, because this server only implements the end of a link."""
        await abort(context, NotImplementedYet("a link's end only"))

    async def WatchLoad(self, request: object, context: AnyContext) -> NoReturn:  # type: ignore[override]
        """Not implemented, because there is no stage."""
        await abort(context, NotImplementedYet("a link's end only"))

    def _failed(self, link: IncomingLink, message: chunk_pb2.Chunk, error: AntiphonError) -> None:
        self.received.faults.append(error)
        self.received.changed.set()

    def _suspended(self, link: IncomingLink) -> None:
        self.received.suspended += 1
        self.received.changed.set()

    def _lost(self, link: IncomingLink) -> None:
        self.received.lost += 1
        self.received.changed.set()


@asynccontextmanager
async def serving(consumer: LinkConsumer, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """Serve a consumer on a free port. The value is its address."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_stage_service(consumer, server)
    port = server.add_insecure_port(f"{host}:0")
    await server.start()
    try:
        yield f"{host}:{port}"
    finally:
        await server.stop(None)


@dataclass(slots=True)
class Told:
    """The events of a link. `lost` is its final error, and `unacknowledged` contains the affected
    sessions.
    """

    suspended: int = 0
    lost: list[AntiphonError] = field(default_factory=list)
    unacknowledged: Collection[str] = ()
    settled: list[str] = field(default_factory=list)
    refused: list[tuple[str, AntiphonError]] = field(default_factory=list)
    changed: Changes = field(default_factory=Changes)

    def events(self) -> LinkEvents:
        """Return callbacks that record the events. Credits are not recorded, because the session
        table handles them.
        """
        return LinkEvents(
            refused=lambda session_id, error: self._note(self.refused.append, (session_id, error)),
            lost=lambda _, error, sessions: self._note(self._lose, (error, sessions)),
            settled=lambda session_id: self._note(self.settled.append, session_id),
            credited=lambda *_: None,
            suspended=lambda _: self._note(self._suspend, None),
        )

    def _lose(self, lost: tuple[AntiphonError, Collection[str]]) -> None:
        error, self.unacknowledged = lost
        self.lost.append(error)

    def _suspend(self, _: None) -> None:
        self.suspended += 1

    def _note(self, note: Callable[[Item], None], item: Item) -> None:
        note(item)
        self.changed.set()


@dataclass(slots=True)
class Rig:
    """A link from this process to a consumer, by way of a wire."""

    link: OutgoingLink
    told: Told
    consumer: LinkConsumer
    wire: CutWire


def producer(
    address: str,
    settings: LinkSettings,
    senders: MakeSenders = make_senders,
    *,
    identity: LinkIdentity = PRODUCER,
    boot_id: str = "",
) -> tuple[OutgoingLink, Told]:
    """Return a link to an address, optionally for a specific process, and its recorded events."""
    told = Told()
    link = OutgoingLink(
        Peer(address, boot_id),
        identity,
        settings,
        told.events(),
        open_channel=lambda: connect_in_clear(address, ""),
        make_senders=senders,
    )
    return link, told


@asynccontextmanager
async def linked(
    settings: LinkSettings,
    *,
    consumer_settings: LinkSettings | None = None,
    senders: MakeSenders = make_senders,
    attach: Attach = attach_best,
) -> AsyncIterator[Rig]:
    """Create both ends of a link on this event loop."""
    consumer = LinkConsumer(consumer_settings or settings, attach, boot_id="consumer-boot")
    async with serving(consumer) as address:
        wire = CutWire(address)
        await wire.open()
        link, told = producer(wire.address, settings, senders)
        try:
            yield Rig(link, told, consumer, wire)
        finally:
            await link.close()
            await wire.close()
