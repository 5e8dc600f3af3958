"""The consumer's end of a single connection of a link. It fetches payloads, delivers chunks in
order, and sends responses.

If a chunk's payload can't be fetched, the chunk is requested again. Until it arrives, all messages
are skipped, because the producer also resends everything after this chunk. If a chunk is malformed,
it counts as received and is passed to `failed`, while the link carries on. A corrupt message ends
the connection, just as a network failure would. Progress is acknowledged from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import grpc

from antiphon.errors import (
    AntiphonError,
    InvalidArgument,
    ResourceExhausted,
)
from antiphon.transport.link.incoming.agreement import ConsumerAgreement
from antiphon.transport.link.incoming.carriers import IncomingCarriers
from antiphon.transport.link.incoming.link import IncomingLink, is_next
from antiphon.transport.payload.registry import FALLBACK, Attach
from antiphon.transport.payload.transport import PayloadLost
from antiphon.transport.response_log import MAX_RESPONSES
from antiphon.transport.ring.entries import DamagedRing
from antiphon.transport.settings import LinkIdentity, LinkSettings
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.values.chunk import Chunk
from antiphon.wire.checksum import CorruptMessage
from antiphon.wire.chunks import chunk_from_proto, inline_bytes
from antiphon.wire.frames import CameOnLink, as_frame

# Each acknowledgement wakes four threads at both ends, and is urgent only at the end of a segment.
PROGRESS_CHUNKS = 256
PROGRESS_BYTES = 1 << 20
PROGRESS_S = 0.5

log = logging.getLogger(__name__)

LinkContext = grpc.aio.ServicerContext[stage_pb2.LinkRequest, stage_pb2.LinkResponse]
Arrived = Callable[[Sequence[Chunk]], None]
Failed = Callable[[chunk_pb2.Chunk, AntiphonError], None]


class IncomingConnection:
    """Serves one stream of a link. `arrived` and `failed` receive the chunks in order."""

    def __init__(
        self,
        link: IncomingLink,
        incoming: AsyncIterator[CameOnLink],
        context: LinkContext,
        settings: LinkSettings,
        arrived: Arrived,
        failed: Failed,
        attach: Attach,
    ) -> None:
        self.said_goodbye = False
        self._link = link
        self._carriers = IncomingCarriers(incoming, self._take_message)
        self._context = context
        self._arrived = arrived
        self._failed = failed
        self._uses_ring = settings.ring
        self._agreement = ConsumerAgreement(settings, link.state, attach)
        self._loop = asyncio.get_running_loop()
        self._control: deque[stage_pb2.LinkResponse] = deque()
        self._asked_again = False
        self._unreported = self._unreported_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._progress_due = False
        self._tasks: list[asyncio.Task[None]] = []
        self._undelivered: list[Chunk] = []

    async def run(self, hello: stage_pb2.LinkHello, own: LinkIdentity, *, resumed: bool) -> None:
        """Accept the link, and serve it until the stream ends. Raises `AntiphonError` if the
        producer violates the protocol.
        """
        accept = await self._agreement.attach(hello.offers)
        self._link.responses.confirmed(hello.responses)
        accept.boot_id, accept.role, accept.name = own.boot_id, own.role, own.name
        accept.chunks, accept.resumed = self._link.received, resumed
        try:
            if hello.ring and self._uses_ring and not self._link.ring_damaged:
                accept.ring_proof = await self._carriers.attach(hello.ring)
            await self._context.write(stage_pb2.LinkResponse(accept=accept))
            pumps = [self._carriers.read_stream(), self._answer()]
            if accept.ring_proof:
                pumps.append(self._carriers.read_ring())
            self._tasks = [asyncio.create_task(pump) for pump in pumps]
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._stop()
        for task in self._tasks:
            error = None if task.cancelled() else task.exception()
            if isinstance(error, DamagedRing):
                self._link.ring_damaged = True
                self._link.state.counts["damaged"] += 1
            if isinstance(error, AntiphonError):
                raise error
            if error is not None:
                log.warning("a connection of link %s ended: %r", self._link.link_id, error)

    def close(self) -> None:
        """Stop serving this stream, because a newer connection has taken over the link."""
        for task in self._tasks:
            task.cancel()

    async def _stop(self) -> None:
        self.close()
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            self._agreement.close()
            self._carriers.close()

    # -- chunks ----------------------------------------------------------------------------

    async def _take_message(self, request: CameOnLink) -> bool:
        """Process a message. Returns False if it was the last one of the connection."""
        if isinstance(request, CorruptMessage):
            # We can't tell what the message contained. On the next connection, the producer
            # resends everything that hasn't been confirmed.
            log.warning("link %s: received a corrupt message", self._link.link_id)
            self._link.state.counts["damaged"] += 1
            return False
        if (frame := as_frame(request)) is not None:
            self._agreement.take(frame)
            return True
        assert isinstance(request, stage_pb2.LinkRequest)
        match request.WhichOneof("message"):
            case "batch":
                await self._take_batch(request.batch)
            case "offers":
                accept = await self._agreement.attach_anew(request.offers.offers)
                self._tell(stage_pb2.LinkResponse(accept=accept))
            case "goodbye":
                self.said_goodbye = True
                return False
            case "start":
                self._agreement.begin(request.start.payload)
            case _:
                raise InvalidArgument("link: received an unexpected message")
        return True

    async def _take_batch(self, batch: stage_pb2.ChunkBatch) -> None:
        self._link.responses.confirmed(batch.responses)
        self._link.state.counts["messages"] += 1
        number = batch.first if batch.HasField("first") else self._link.received
        ends = False
        try:
            for proto in batch.chunks:
                await self._take(number, proto)
                number += 1
                ends = ends or proto.segment_finished
        finally:
            self._deliver()
        # Acknowledge the end of a segment right away, because the producer keeps its session until
        # then.
        many = self._unreported >= PROGRESS_CHUNKS or self._unreported_bytes >= PROGRESS_BYTES
        if many or (ends and self._unreported):
            self._report_progress()
        elif self._unreported and self._timer is None:
            self._timer = self._loop.call_later(PROGRESS_S, self._report_progress)

    async def _take(self, number: int, proto: chunk_pb2.Chunk) -> None:
        link = self._link
        if self._asked_again and number > link.received:
            return
        if not is_next(number, link.received):
            return
        fault: AntiphonError | None = None
        try:
            if proto.payload.HasField("placed"):
                self._deliver()
                transport, blob = await self._agreement.fetch(proto.payload)
            else:
                transport, blob = FALLBACK.name, inline_bytes(proto)
            chunk = chunk_from_proto(proto, blob)
        except PayloadLost as error:
            self._ask_again(number, error)
            return
        except AntiphonError as error:
            fault = error
        self._asked_again = False
        link.received += 1
        self._unreported += 1
        if fault is not None:
            self._deliver()
            self._failed(proto, fault)
            return
        # Count the bytes that actually arrived rather than the size stated in the message.
        if size_bytes := len(blob):
            self._unreported_bytes += size_bytes
            link.state.count_payload(transport, size_bytes)
        self._undelivered.append(chunk)

    def _deliver(self) -> None:
        """Deliver the received chunks before the next await, because they already count as
        received.
        """
        if self._undelivered:
            chunks, self._undelivered = self._undelivered, []
            self._arrived(chunks)

    def _ask_again(self, number: int, error: PayloadLost) -> None:
        self._asked_again = True
        self._link.state.count_fallback(error.reason)
        resend = stage_pb2.LinkResend(first=number, reason=error.reason)
        self._tell(stage_pb2.LinkResponse(resend=resend))

    # -- answers ---------------------------------------------------------------------------

    def _tell(self, response: stage_pb2.LinkResponse) -> None:
        self._control.append(response)
        self._link.changed.set()

    def _report_progress(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._progress_due = True
        self._link.changed.set()

    def _progress(self) -> stage_pb2.LinkResponse:
        self._progress_due = False
        self._unreported = self._unreported_bytes = 0
        return stage_pb2.LinkResponse(progress=stage_pb2.LinkProgress(chunks=self._link.received))

    async def _answer(self) -> None:
        """Write control messages, refusals and credits in order until this task is cancelled."""
        written = self._link.responses.first
        while True:
            if self._link.overrun:
                raise ResourceExhausted(f"link: {MAX_RESPONSES} answers were not confirmed")
            while self._control:
                await self._context.write(self._control.popleft())
            written = max(written, self._link.responses.first)
            due = self._link.responses.since(written)
            for response in due:
                await self._context.write(response)
            written += len(due)
            if self._progress_due:
                await self._context.write(self._progress())
            elif not (self._control or written < self._link.responses.count):
                self._link.changed.clear()
                await self._link.changed.wait()
