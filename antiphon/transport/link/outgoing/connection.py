"""One connection of a link as its producer sees it: from hello until the stream breaks.

A payload goes over the agreed transport if that takes it, else over gRPC; one that
the consumer could not get is sent again over gRPC, with everything after it. Bytes
that take a while go ahead of their chunk and are passed by other sessions' chunks.
The transports live as long as the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from antiphon.errors import FailedPrecondition
from antiphon.transport.link.outgoing.pushes import Pushes
from antiphon.transport.link.outgoing.send_log import Outgoing, SendLog
from antiphon.transport.payload.framed import FramedSender
from antiphon.transport.payload.registry import MakeSenders
from antiphon.transport.payload.transport import (
    INLINE_BYTES,
    Fallback,
    NotPlaced,
    PayloadLost,
    PayloadSender,
)
from antiphon.transport.settings import LinkSettings, LinkState
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.blob import Encoding
from antiphon.wire.frames import LinkCall, LinkMessage

MAX_BATCH_BYTES = 1 << 20
MAX_BATCH_CHUNKS = 4096
# What is kept of the reasons that a consumer gives.
MAX_REASONS, MAX_REASON = 8, 500
# A transport that broke is offered anew after this long, doubling.
FIRST_OFFER_S = 1.0
LAST_OFFER_S = 60.0

log = logging.getLogger(__name__)


class OutgoingConnection:
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
        self._framed = FramedSender(self._write_message)
        self._senders: list[PayloadSender] = []
        self._chosen: PayloadSender = self._framed
        self._pushes = Pushes(changed)
        self._writing = asyncio.Lock()
        self._placed: dict[Outgoing, chunk_pb2.Payload] = {}
        self._only_grpc: set[Outgoing] = set()
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
        told = (reason[:MAX_REASON] for reason in accept.refused[:MAX_REASONS])
        self._state.refused = (*self._failed, *told)
        for reason in self._state.refused:
            log.info("link to %s: %s", self._state.peer_address, reason)
        if self._offered_anew and chosen.name == self._framed.name:
            self._offer_later()

    async def write(self, responses: Callable[[], int]) -> None:
        """Send what becomes sendable until `leave`; `responses` tells how many have come."""
        try:
            while True:
                self._changed.clear()
                if self._offers_due:
                    await self._offer_anew()
                batch = self._next_batch()
                if batch.chunks:
                    batch.responses = responses()
                    await self._write_message(stage_pb2.LinkRequest(batch=batch))
                elif self._leaving and not self._log.waits:
                    goodbye = stage_pb2.LinkGoodbye()
                    await self._write_message(stage_pb2.LinkRequest(goodbye=goodbye))
                    await self._stream.done_writing()
                    return
                else:
                    await self._changed.wait()
        finally:
            await self._pushes.close()

    def progressed(self, progress: stage_pb2.LinkProgress) -> list[Outgoing]:
        """The consumer has chunks: those that it had not before."""
        come = self._log.acknowledge(progress.chunks)
        for chunk in come:
            self._placed.pop(chunk, None)
            self._only_grpc.discard(chunk)
        self._changed.set()
        return come

    def asked_again(self, resend: stage_pb2.LinkResend) -> None:
        """A payload did not arrive: it goes over gRPC, and what followed it follows again."""
        if (chunk := self._log.numbered(resend.first)) is not None:
            self._only_grpc.add(chunk)
            if (lost := self._placed.pop(chunk, None)) is not None:
                self._chosen.release((lost.slab_slot.generation,))
        self._state.counts["resent"] += self._log.rewind(resend.first)
        known = resend.reason in {reason.value for reason in Fallback}
        self._state.count_fallback(resend.reason if known else "unknown")
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

    def _next_batch(self) -> stage_pb2.ChunkBatch:
        """What can go now: about `MAX_BATCH_BYTES` inline at most.

        A chunk whose bytes are still on their way holds its session back, no other.
        """
        batch = stage_pb2.ChunkBatch(first=0)
        taken = 0
        held: set[str] = set()
        while taken < MAX_BATCH_BYTES and len(batch.chunks) < MAX_BATCH_CHUNKS:
            chunk = self._log.first(held)
            if chunk is None:
                break
            payload = self._payload(chunk, chunk.encoding) if chunk.encoding is not None else None
            if payload is None and chunk.encoding is not None:
                held.add(chunk.session_id)
                continue
            number = self._log.sent(chunk)
            if not batch.chunks:
                batch.first = number
            proto = batch.chunks.add()
            proto.CopyFrom(chunk.address)
            if payload is not None:
                proto.payload.MergeFrom(payload)
                taken += len(payload.inline)
        return batch

    def _payload(self, chunk: Outgoing, encoding: Encoding) -> chunk_pb2.Payload | None:
        """Where the blob is; None while its bytes are on their way or cannot start yet."""
        if (kept := self._placed.get(chunk)) is not None:
            return kept
        try:
            if (push := self._pushes.of(chunk)) is not None:
                payload = self._pushes.settle(push)
                if payload is not None:
                    self._state.count_payload(push.transport, encoding.size_bytes)
                return payload
        except PayloadLost as error:
            log.warning("link to %s: %s", self._state.peer_address, error.message)
            self._fall_back(chunk, error.reason)
        sender = self._sender_for(chunk, encoding)
        if sender is not self._framed and self._pushes.is_stuck(sender.name):
            self._fall_back(chunk, Fallback.COLLECTIVE_BUSY)
            sender = self._framed
        if sender.pushes(encoding) and self._pushes.is_busy(sender.name):
            return None
        try:
            placement = sender.place(encoding)
        except NotPlaced as error:
            log.debug("link to %s: %s", self._state.peer_address, error.message)
            self._fall_back(chunk, error.reason)
            return self._payload(chunk, encoding)
        if placement.push is not None:
            self._pushes.begin(sender.name, chunk, placement)
            return None
        self._state.count_payload(sender.name, encoding.size_bytes)
        if placement.payload.HasField("slab_slot"):
            self._placed[chunk] = placement.payload
        return placement.payload

    def _sender_for(self, chunk: Outgoing, encoding: Encoding) -> PayloadSender:
        small = encoding.size_bytes <= INLINE_BYTES
        return self._framed if small or chunk in self._only_grpc else self._chosen

    def _fall_back(self, chunk: Outgoing, reason: Fallback) -> None:
        self._only_grpc.add(chunk)
        self._state.count_fallback(reason.value)
        if self._chosen.broken:
            self._offer_later()

    def _offer_later(self) -> None:
        if self._offer_timer is None:
            loop = asyncio.get_running_loop()
            self._offer_timer = loop.call_later(self._offer_in_s, self._let_offer)
            self._offer_in_s = min(2 * self._offer_in_s, LAST_OFFER_S)

    def _let_offer(self) -> None:
        # Meanwhile an offer may have been taken.
        self._offer_timer = None
        self._offers_due = self._chosen.broken or self._chosen.name == self._framed.name
        self._changed.set()

    async def _offer_anew(self) -> None:
        """Offer what there is, and gRPC in any case: nothing in flight may be lost for it."""
        self._offers_due, self._offered_anew = False, True
        try:
            offers = await self._make_offers()
        except FailedPrecondition as error:
            log.info("link to %s: %s", self._state.peer_address, error.message)
            self._offer_later()
            return
        self._senders.insert(0, self._framed)
        offers.append(self._framed.offer())
        request = stage_pb2.LinkRequest(offers=stage_pb2.TransportOffers(offers=offers))
        await self._write_message(request)

    async def _make_offers(self) -> list[stage_pb2.TransportOffer]:
        address = self._state.peer_address
        made, self._failed = await self._make_senders(self._settings, address, self._write_message)
        self._senders = [*self._senders, *made]
        return [sender.offer() for sender in made]

    async def _write_message(self, message: LinkMessage) -> None:
        """In turn: batches and the messages of pushes alternate."""
        async with self._writing:
            await self._stream.write(message)
