"""The producer's end of a single connection of a link, from the hello until the stream breaks.

All chunks that are ready are sent together. Their payloads are placed (`payloads.py`) using the
negotiated transport (`agreement.py`). If the consumer can't fetch a payload, its chunk is sent
again, and so are all chunks after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antiphon.deadlines.wait_deadline import WaitDeadline
from antiphon.transport.link.outgoing.agreement import ProducerAgreement
from antiphon.transport.link.outgoing.carriers import OutgoingCarriers
from antiphon.transport.link.outgoing.payloads import Payloads
from antiphon.transport.link.outgoing.send_log import Outgoing, SendLog
from antiphon.transport.payload.registry import MakeSenders, is_reason
from antiphon.transport.settings import LinkSettings, LinkState
from antiphon.v1 import stage_pb2
from antiphon.wire.frames import LinkCall, LinkMessage

MAX_BATCH_BYTES = 1 << 20
MAX_BATCH_PAYLOAD_BYTES = 4 << 20
"""The maximum total size of payloads that are placed at a time. Nothing else can be sent while they
are being placed.
"""
MAX_BATCH_CHUNKS = 4096


class OutgoingConnection:
    """Negotiates transports in `open`, and then sends chunks in `write` until the stream breaks.

    `changed` is an event of the link that is set whenever there may be something new to send.
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
        self._carriers = OutgoingCarriers(stream, settings, state)
        self._agreement = ProducerAgreement(
            settings, state, make_senders, self._write_in_time, changed
        )
        self._payloads = Payloads(self._agreement, state, changed)
        self._leaving = False
        self._answer_within_s = settings.answer_within_s
        self._patience = WaitDeadline(settings.answer_within_s)

    async def open(self, hello: stage_pb2.LinkHello) -> stage_pb2.LinkAccept:
        """Send a hello with offers, and return the consumer's answer.

        Raises `FailedPrecondition` if the two sides can't agree on a transport. Errors of the
        stream are raised as well.
        """
        hello.offers.extend(await self._agreement.offers())
        hello.ring = self._carriers.offer()
        await self._stream.write(stage_pb2.LinkRequest(hello=hello))
        answer = await self._stream.read()
        if not isinstance(answer, stage_pb2.LinkResponse) or not answer.HasField("accept"):
            # This isn't a response from the peer. It means that the network failed or that a
            # response was corrupted.
            raise asyncio.InvalidStateError("the stream ended before the link was accepted")
        self.accepted(answer.accept)
        self._carriers.accepted(answer.accept.ring_proof)
        return answer.accept

    def accepted(self, accept: stage_pb2.LinkAccept) -> None:
        """Use the transport that the consumer has chosen. Raises `FailedPrecondition` if the choice
        is invalid.
        """
        self._agreement.accepted(accept)

    async def write(self, responses: Callable[[], int]) -> None:
        """Send everything as it becomes ready, until `leave` is called.

        `responses` returns the number of responses received so far. Raises `TimeoutError` if the
        consumer has chunks to confirm but sends nothing for too long. Without this timeout, a
        corrupted length prefix could make the consumer wait forever.
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
                await self._carriers.write(request)
            elif self._leaving and not self._log.waits:
                goodbye = stage_pb2.LinkGoodbye()
                await self._carriers.write(stage_pb2.LinkRequest(goodbye=goodbye))
                await self._stream.done_writing()
                return
            else:
                await self._changed.wait()

    def heard(self) -> None:
        """Restart the timeout. The consumer has sent a message, so it must be reading."""
        if self._log.unconfirmed:
            self._patience.begin()
        else:
            self._patience.end()

    def progressed(self, progress: stage_pb2.LinkProgress) -> list[Outgoing]:
        """Return the chunks that the consumer has acknowledged since the last call."""
        come = self._log.acknowledge(progress.chunks)
        self._payloads.arrived(come)
        self._changed.set()
        return come

    def asked_again(self, resend: stage_pb2.LinkResend) -> None:
        """Send a chunk again using the fallback, because its payload was lost. All chunks after it
        are sent again as well.
        """
        if (chunk := self._log.numbered(resend.first)) is not None:
            self._payloads.lost(chunk)
        self._state.counts["resent"] += self._log.rewind(resend.first)
        self._state.count_fallback(resend.reason if is_reason(resend.reason) else "unknown")
        self._changed.set()

    def leave(self) -> None:
        """End the link cleanly after everything has been sent."""
        self._leaving = True
        self._changed.set()

    def close(self) -> None:
        """Close the transports and the ring."""
        self._agreement.close()
        self._carriers.close()

    def _next_batch(self) -> stage_pb2.LinkRequest | None:
        """Return the next message. It contains up to about `MAX_BATCH_BYTES` of inline data, and
        payloads of up to about `MAX_BATCH_PAYLOAD_BYTES`.

        Chunks that are emitted while a message is being sent go into the next message. If a chunk's
        payload is still being transferred, only its own session has to wait.
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
        """Write a message on behalf of a transport. Raises `TimeoutError` if the consumer doesn't
        read it.

        A separate timeout is needed because the consumer may not have anything to confirm until the
        transport is done.
        """
        async with asyncio.timeout(self._answer_within_s):
            await self._carriers.write(message)
