"""One connection of a link as its producer sees it: from hello until the stream breaks.

Chunks leave in the order of their numbers. A payload goes over the agreed transport
if that takes it, else over gRPC; one that the consumer could not get is sent again
over gRPC, with everything after it. The transports live as long as the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from antiphon.errors import FailedPrecondition
from antiphon.transport.framed import FramedSender
from antiphon.transport.negotiate import MakeSenders
from antiphon.transport.payload import (
    INLINE_BYTES,
    NotPlaced,
    PayloadLost,
    PayloadSender,
    Placement,
)
from antiphon.transport.send_log import Outgoing, SendLog
from antiphon.transport.settings import LinkSettings, LinkState
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.frames import Frame, LinkCall

MAX_BATCH_BYTES = 1 << 20
MAX_BATCH_CHUNKS = 4096
# A transport that broke is offered anew after this long, doubling.
FIRST_OFFER_S = 1.0
LAST_OFFER_S = 60.0

Push = Callable[[], Awaitable[None]]

log = logging.getLogger(__name__)


class Connection:
    """Negotiates (`open`), then pumps until the stream breaks (`write`).

    `changed` is the link's: set whenever something may have become sendable.
    """

    def __init__(
        self,
        stream: LinkCall,
        send_log: SendLog,
        changed: asyncio.Event,
        settings: LinkSettings,
        state: LinkState,
        make_senders: MakeSenders,
    ) -> None:
        self._stream = stream
        self._log = send_log
        self._changed = changed
        self._settings = settings
        self._state = state
        self._make_senders = make_senders
        self._framed = FramedSender(self._write_frame)
        self._senders: list[PayloadSender] = []
        self._chosen: PayloadSender = self._framed
        self._placed: dict[int, chunk_pb2.Payload] = {}
        self._only_grpc: set[int] = set()
        self._offer_in_s = FIRST_OFFER_S
        self._offer_timer: asyncio.TimerHandle | None = None
        self._offers_due = self._offered_anew = self._leaving = False
        self._failed: list[str] = []

    async def open(self, hello: stage_pb2.LinkHello) -> stage_pb2.LinkAccept:
        """Say hello with offers; the consumer's answer.

        Raises `FailedPrecondition` when no transport can be agreed on, and what the
        stream raises.
        """
        hello.offers.extend(await self._make_offers())
        await self._stream.write(stage_pb2.LinkRequest(hello=hello))
        answer = await self._stream.read()
        if not isinstance(answer, stage_pb2.LinkResponse) or not answer.HasField("accept"):
            # Not a word of the peer's: a cut wire ends the stream like this too.
            raise asyncio.InvalidStateError("the stream ended before the link was accepted")
        self.accepted(answer.accept)
        return answer.accept

    def accepted(self, accept: stage_pb2.LinkAccept) -> None:
        """Take the consumer's choice and drop the other offers."""
        # The latest of a name: an earlier one is broken.
        matching = [sender for sender in self._senders if sender.name == accept.transport]
        chosen = matching[-1] if matching else None
        if chosen is None or not chosen.proved(accept.proof):
            raise FailedPrecondition(f"the peer proved no transport, it said {accept.transport!r}")
        for other in self._senders:
            if other is not chosen:
                other.close()
        self._chosen, self._senders = chosen, [chosen]
        self._state.transport = chosen.name
        self._state.refused = (*self._failed, *accept.refused)
        for reason in self._state.refused:
            log.info("link to %s: %s", self._state.peer_address, reason)
        if self._offered_anew and chosen.name == self._framed.name:
            self._offer_later()

    async def write(self, responses: Callable[[], int]) -> None:
        """Send what becomes sendable until `leave`; `responses` tells how many have come."""
        while True:
            while not (self._log.sendable or self._offers_due or self._leaving):
                self._changed.clear()
                await self._changed.wait()
            if self._leaving and not self._log.sendable:
                goodbye = stage_pb2.LinkGoodbye()
                await self._stream.write(stage_pb2.LinkRequest(goodbye=goodbye))
                await self._stream.done_writing()
                return
            if self._offers_due:
                await self._offer_anew()
                continue
            batch, push = self._next_batch()
            batch.responses = responses()
            await self._stream.write(stage_pb2.LinkRequest(batch=batch))
            if push is not None:
                await self._push(push)

    def progressed(self, progress: stage_pb2.LinkProgress) -> None:
        """The consumer has chunks, and has done with slots."""
        self._log.acknowledge(progress.chunks)
        for number in [each for each in self._placed if each < progress.chunks]:
            del self._placed[number]
        self._only_grpc = {each for each in self._only_grpc if each >= progress.chunks}
        self._chosen.release(progress.released_slots)
        self._changed.set()

    def asked_again(self, resend: stage_pb2.LinkResend) -> None:
        """A payload did not arrive: it goes over gRPC, and what followed it follows again."""
        self._only_grpc.add(resend.first)
        lost = self._placed.pop(resend.first, None)
        if lost is not None:
            self._chosen.release((lost.slab_slot.generation,))
        self._state.counts["resent"] += self._log.rewind(resend.first)
        self._state.count_fallback(resend.reason)
        self._changed.set()

    def leave(self) -> None:
        """Take leave once what waits is sent."""
        self._leaving = True
        self._changed.set()

    def close(self) -> None:
        """Give the transports back."""
        if self._offer_timer is not None:
            self._offer_timer.cancel()
        for sender in self._senders:
            sender.close()

    def _next_batch(self) -> tuple[stage_pb2.ChunkBatch, Push | None]:
        """What waits, at least one chunk and about `MAX_BATCH_BYTES` inline."""
        batch = stage_pb2.ChunkBatch(first=0)
        taken = 0
        while self._log.sendable and taken < MAX_BATCH_BYTES:
            number, chunk = self._log.take()
            if not batch.chunks:
                batch.first = number
            proto = batch.chunks.add()
            proto.CopyFrom(chunk.address)
            if chunk.encoding is not None:
                placement = self._place(number, chunk)
                proto.payload.MergeFrom(placement.payload)
                taken += len(placement.payload.inline)
                if placement.push is not None:
                    return batch, placement.push
            if len(batch.chunks) == MAX_BATCH_CHUNKS:
                break
        return batch, None

    def _place(self, number: int, chunk: Outgoing) -> Placement:
        encoding = chunk.encoding
        assert encoding is not None
        if (kept := self._placed.get(number)) is not None:
            return Placement(kept)
        small = encoding.size_bytes <= INLINE_BYTES
        chosen = self._framed if small or number in self._only_grpc else self._chosen
        try:
            placement = chosen.place(encoding)
        except NotPlaced as error:
            self._fall_back(error)
            chosen = self._framed
            placement = chosen.place(encoding)
        if placement.payload.HasField("slab_slot"):
            self._placed[number] = placement.payload
        self._state.count_payload(chosen.name, encoding.size_bytes)
        return placement

    def _fall_back(self, error: NotPlaced) -> None:
        self._state.count_fallback(error.reason.value)
        log.debug("link to %s: %s", self._state.peer_address, error.message)

    async def _push(self, push: Push) -> None:
        try:
            await push()
        except PayloadLost as error:
            log.warning("link to %s: %s", self._state.peer_address, error.message)
        if self._chosen.broken:
            self._offer_later()

    def _offer_later(self) -> None:
        if self._offer_timer is None:
            loop = asyncio.get_running_loop()
            self._offer_timer = loop.call_later(self._offer_in_s, self._let_offer)
            self._offer_in_s = min(2 * self._offer_in_s, LAST_OFFER_S)

    def _let_offer(self) -> None:
        self._offers_due = True
        self._changed.set()

    async def _offer_anew(self) -> None:
        """Offer what there is, and gRPC in any case: nothing in flight may be lost for it."""
        self._offers_due, self._offer_timer, self._offered_anew = False, None, True
        try:
            offers = await self._make_offers()
        except FailedPrecondition as error:
            log.info("link to %s: %s", self._state.peer_address, error.message)
            self._offer_later()
            return
        self._senders.insert(0, self._framed)
        offers.append(self._framed.offer())
        request = stage_pb2.LinkRequest(offers=stage_pb2.TransportOffers(offers=offers))
        await self._stream.write(request)

    async def _make_offers(self) -> list[stage_pb2.TransportOffer]:
        address = self._state.peer_address
        made, self._failed = await self._make_senders(self._settings, address, self._write_frame)
        self._senders = [*self._senders, *made]
        return [sender.offer() for sender in made]

    async def _write_frame(self, frame: Frame) -> None:
        await self._stream.write(frame)
