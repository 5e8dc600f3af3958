"""The producer's end of one connection of a link, from hello until the stream breaks.

Chunks that are ready are sent together, their payloads placed (`payloads.py`) by the negotiated
transport (`agreement.py`). If the consumer could not fetch one, it and everything after it is sent
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antiphon.deadlines.wait_deadline import WaitDeadline
from antiphon.transport.link.outgoing.agreement import ProducerAgreement
from antiphon.transport.link.outgoing.payloads import Payloads
from antiphon.transport.link.outgoing.send_log import Outgoing, SendLog
from antiphon.transport.payload.registry import MakeSenders, is_reason
from antiphon.transport.settings import LinkSettings, LinkState
from antiphon.v1 import stage_pb2
from antiphon.wire.frames import LinkCall, LinkMessage

MAX_BATCH_BYTES = 1 << 20
MAX_BATCH_PAYLOAD_BYTES = 4 << 20
"""Bound on payloads placed at once; nothing else is sent during that time."""
MAX_BATCH_CHUNKS = 4096


class OutgoingConnection:
    """Negotiates in `open`, then sends in `write` until the stream breaks.

    `changed` is the link's event, set whenever something may have become sendable.
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
        self._state = state
        self._agreement = ProducerAgreement(
            settings, state, make_senders, self._write_in_time, changed
        )
        self._payloads = Payloads(self._agreement, state, changed)
        self._writing = asyncio.Lock()
        self._leaving = False
        self._answer_within_s = settings.answer_within_s
        self._patience = WaitDeadline(settings.answer_within_s)

    async def open(self, hello: stage_pb2.LinkHello) -> stage_pb2.LinkAccept:
        """Send hello with offers and return the consumer's answer.

        Raises `FailedPrecondition` if no transport is agreed on, and the stream's errors.
        """
        hello.offers.extend(await self._agreement.offers())
        await self._stream.write(stage_pb2.LinkRequest(hello=hello))
        answer = await self._stream.read()
        if not isinstance(answer, stage_pb2.LinkResponse) or not answer.HasField("accept"):
            # Not an answer of the peer: a broken network ends the stream like this, and so does a
            # corrupt answer.
            raise asyncio.InvalidStateError("the stream ended before the link was accepted")
        self.accepted(answer.accept)
        return answer.accept

    def accepted(self, accept: stage_pb2.LinkAccept) -> None:
        """Use the consumer's choice of transport. Raises `FailedPrecondition`."""
        self._agreement.accepted(accept)

    async def write(self, responses: Callable[[], int]) -> None:
        """Send what becomes sendable until `leave`. `responses` returns the number of responses
        received.

        Raises `TimeoutError` if the consumer has chunks to confirm and is silent for too long. A
        corrupted length prefix would otherwise block it forever.
        """
        try:
            async with self._patience:
                await self._write(responses)
        finally:
            await self._payloads.close()

    async def _write(self, responses: Callable[[], int]) -> None:
        while True:
            self._changed.clear()
            if self._agreement.due:
                await self._agreement.offer_anew()
            request = self._next_batch() if self._log.waits else None
            if request is not None:
                request.batch.responses = responses()
                await self._write_message(request)
            elif self._leaving and not self._log.waits:
                goodbye = stage_pb2.LinkGoodbye()
                await self._write_message(stage_pb2.LinkRequest(goodbye=goodbye))
                await self._stream.done_writing()
                return
            else:
                await self._changed.wait()

    def heard(self) -> None:
        """Restart the timeout: the consumer has sent a message, so it reads."""
        if self._log.unconfirmed:
            self._patience.begin()
        else:
            self._patience.end()

    def progressed(self, progress: stage_pb2.LinkProgress) -> list[Outgoing]:
        """Return the chunks that the consumer newly acknowledges."""
        come = self._log.acknowledge(progress.chunks)
        self._payloads.arrived(come)
        self._changed.set()
        return come

    def asked_again(self, resend: stage_pb2.LinkResend) -> None:
        """Send a chunk over the fallback, and everything after it again: its payload was lost."""
        if (chunk := self._log.numbered(resend.first)) is not None:
            self._payloads.lost(chunk)
        self._state.counts["resent"] += self._log.rewind(resend.first)
        self._state.count_fallback(resend.reason if is_reason(resend.reason) else "unknown")
        self._changed.set()

    def leave(self) -> None:
        """Say goodbye once everything is sent."""
        self._leaving = True
        self._changed.set()

    def close(self) -> None:
        """Close the transports."""
        self._agreement.close()

    def _next_batch(self) -> stage_pb2.LinkRequest | None:
        """Return the next message, of about `MAX_BATCH_BYTES` inline and `MAX_BATCH_PAYLOAD_BYTES`
        in all.

        Chunks emitted during its transmission wait. A chunk whose payload is still being
        transferred holds back only its own session.
        """
        request = stage_pb2.LinkRequest()
        batch = request.batch
        inline = payloads = 0
        held: set[str] = set()
        while (
            inline < MAX_BATCH_BYTES
            and payloads < MAX_BATCH_PAYLOAD_BYTES
            and len(batch.chunks) < MAX_BATCH_CHUNKS
        ):
            chunk = self._log.first(held)
            if chunk is None:
                break
            encoding = chunk.encoding
            payload = self._payloads.of(chunk, encoding) if encoding is not None else None
            if payload is None and encoding is not None:
                held.add(chunk.session_id)
                continue
            if not self._log.unconfirmed:
                self._patience.begin()
            number = self._log.sent(chunk)
            if not batch.chunks:
                batch.first = number
            proto = batch.chunks.add()
            proto.CopyFrom(chunk.address)
            if payload is not None:
                proto.payload.MergeFrom(payload)
                inline += len(payload.inline)
                payloads += payload.size_bytes
        return request if batch.chunks else None

    async def _write_in_time(self, message: LinkMessage) -> None:
        """Write a transport's message. Raises `TimeoutError` if the consumer does not read.

        The consumer may have nothing to confirm until the transport is done, so this needs its own
        timeout.
        """
        async with asyncio.timeout(self._answer_within_s):
            await self._write_message(message)

    async def _write_message(self, message: LinkMessage) -> None:
        """Write a message; batches alternate with frames of pushes."""
        async with self._writing:
            await self._stream.write(message)
