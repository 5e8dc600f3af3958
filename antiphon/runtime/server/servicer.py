"""The gRPC `StageService` of a `Stage`: converts messages to values and back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import aclosing

import grpc
from google.protobuf.message import DecodeError

from antiphon.deadlines.wait_deadline import WaitDeadline
from antiphon.errors import (
    AntiphonError,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    Unavailable,
    unexpected,
)
from antiphon.runtime.server.callers import Callers
from antiphon.runtime.server.description import StageIdentity, describe, load_to_proto
from antiphon.runtime.server.link_port import LinkPort
from antiphon.runtime.server.session_trace import SessionTrace
from antiphon.runtime.server.stage import Reply, Stage
from antiphon.runtime.session.facts import (
    ChunkArrived,
    ClientDone,
    Credited,
    InputFinished,
    ProducerGone,
    SegmentCancelled,
    SegmentRequested,
    SessionFaulted,
    UpstreamProgressed,
)
from antiphon.runtime.session.instructions import (
    REPLY,
    Destination,
    End,
    Opened,
    Progress,
    Report,
    SegmentOpened,
    SegmentRefused,
    Suspended,
)
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest
from antiphon.tracing.tracing import Tracing
from antiphon.transport.link.incoming.connection import LinkContext
from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2, stage_pb2_grpc
from antiphon.values.chunk import Chunk
from antiphon.values.segment import Delivery, SegmentKey
from antiphon.wire.checksum import CorruptMessage, undamaged
from antiphon.wire.chunks import chunk_from_proto, put_chunk
from antiphon.wire.convert import (
    delivery_from_proto,
    error_to_proto,
    finish_reason_to_proto,
    policy_from_proto,
    sampling_from_proto,
)
from antiphon.wire.frames import CameOnLink
from antiphon.wire.history import history_from_proto
from antiphon.wire.options import option_values_from_proto
from antiphon.wire.status import abort

SessionContext = grpc.aio.ServicerContext[session_pb2.SessionRequest, session_pb2.SessionResponse]


log = logging.getLogger(__name__)

_LOADING = Unavailable("the model is still loading", retry_after_s=1.0)

ANYBODY = Callers()


class StageServicer(stage_pb2_grpc.StageServiceServicer):
    """Serves a stage over gRPC. Until `serve` it answers that the model is loading."""

    def __init__(self, tracing: Tracing | None = None, callers: Callers = ANYBODY) -> None:
        self._tracing = tracing or Tracing()
        self._callers = callers
        self._stage: Stage | None = None
        self._identity: StageIdentity | None = None
        self._link_port: LinkPort | None = None

    def serve(self, stage: Stage, identity: StageIdentity, link_port: LinkPort) -> None:
        """Accept sessions: the model is loaded."""
        self._stage, self._identity, self._link_port = stage, identity, link_port

    async def Describe(
        self,
        request: stage_pb2.DescribeRequest,
        context: grpc.aio.ServicerContext[stage_pb2.DescribeRequest, stage_pb2.DescribeResponse],
    ) -> stage_pb2.DescribeResponse:
        """Describe this stage and its current load."""
        await self._callers.check_session(context)
        if self._stage is None or self._identity is None or self._link_port is None:
            await abort(context, _LOADING)
        table = self._stage.table
        return describe(
            self._identity,
            open_sessions=table.session_count,
            open_segments=table.open_segments,
            held_segments=table.held_segments,
            output_positions=table.tally.positions,
            links=[*self._stage.outgoing_links(), *self._link_port.states()],
        )

    # Handlers write through the context, so that cancelling a call cancels this coroutine. An
    # abandoned generator would free its session only when it is collected.
    async def RunSession(  # type: ignore[override]
        self,
        requests: AsyncIterable[session_pb2.SessionRequest | CorruptMessage],
        context: SessionContext,
    ) -> None:
        """Run one session. Everything is freed when this returns or raises."""
        await self._callers.check_session(context)
        if self._stage is None or self._identity is None:
            await abort(context, _LOADING)
        stage, identity = self._stage, self._identity
        incoming = undamaged(requests)
        try:
            opening = await _opening(incoming, stage.limits.hold_timeout_s)
            request = _session_request(opening, identity)
            outbox = stage.open(request)
        except (AntiphonError, DecodeError) as error:
            refusal = _fault(error)
            refusal.stage = refusal.stage or identity.role
            await context.write(session_pb2.SessionResponse(error=error_to_proto(refusal)))
            return
        one_answer = opening.HasField("first_segment")
        trace = SessionTrace(self._tracing, identity.role)
        reader = asyncio.create_task(_read(stage, identity.role, opening, incoming, trace))
        del opening  # It may be large, and the reader needs it only to begin with.
        try:
            async with WaitDeadline(stage.limits.idle_session_timeout_s) as patience:
                async for reply in outbox:
                    trace.told(reply)
                    try:
                        response = _response(reply, identity, one_answer=one_answer)
                    except Exception as error:
                        # The error concerns this reply; the session's end follows it in the outbox.
                        stage.handle(SessionFaulted(request.session_id, _fault(error)))
                        continue
                    if response is not None:
                        patience.begin()
                        await context.write(response)
                        patience.end()
        except grpc.aio.InternalError:
            log.info("session %s: its client is gone", request.session_id)
        except TimeoutError:
            log.warning("session %s: its client takes nothing", request.session_id)
        finally:
            trace.end(Cancelled("the session's stream ended"))
            stage.stream_lost(request.session_id)
            reader.cancel()
            await asyncio.wait([reader])

    async def Link(  # type: ignore[override]
        self, requests: AsyncIterable[CameOnLink], context: LinkContext
    ) -> None:
        """Receive chunks of many sessions from an upstream process."""
        await self._callers.check_link(context)
        if self._link_port is None:
            await abort(context, _LOADING)
        await self._link_port.serve(requests, context)

    async def WatchLoad(  # type: ignore[override]
        self,
        request: stage_pb2.WatchLoadRequest,
        context: grpc.aio.ServicerContext[stage_pb2.WatchLoadRequest, stage_pb2.StageLoad],
    ) -> None:
        """Stream this stage's load until it stops."""
        await self._callers.check_session(context)
        if self._stage is None or self._identity is None:
            await abort(context, _LOADING)
        async with aclosing(self._stage.load_watch.follow()) as loads:
            async for load in loads:
                await context.write(load_to_proto(load, self._identity))


async def _read(
    stage: Stage,
    role: str,
    opening: session_pb2.SessionOpen,
    incoming: AsyncIterator[session_pb2.SessionRequest],
    trace: SessionTrace,
) -> None:
    """Handle a session's requests until its client closes its side."""
    session_id = opening.session_id
    try:
        if opening.HasField("first_segment"):
            trace.opened(opening.first_segment)
            first = segment_request(opening.first_segment, role)
            stage.handle(SegmentRequested(session_id, first))
        for chunk in opening.first_input:
            _take_chunk(stage, session_id, chunk)
        del opening
        async for request in incoming:
            if request.HasField("segment_open"):
                trace.opened(request.segment_open)
            _act(stage, role, session_id, request)
    except Exception as error:
        # Report every exception. Otherwise the session would wait for its reader forever.
        stage.handle(SessionFaulted(session_id, _fault(error)))
    else:
        stage.handle(ClientDone(session_id))


def _fault(error: Exception) -> AntiphonError:
    """Convert an exception to the error that a session reports."""
    if isinstance(error, AntiphonError):
        return error
    if isinstance(error, DecodeError):
        return InvalidArgument("the bytes that came are no session request")
    log.error("a session's stream failed", exc_info=error)
    return unexpected(error)


def _act(stage: Stage, role: str, session_id: str, request: session_pb2.SessionRequest) -> None:
    match request.WhichOneof("message"):
        case "segment_open":
            segment = segment_request(request.segment_open, role)
            stage.handle(SegmentRequested(session_id, segment))
        case "chunk":
            _take_chunk(stage, session_id, request.chunk)
        case "input_finished":
            stage.handle(InputFinished(session_id, request.input_finished.segment))
        case "cancel_segment":
            stage.handle(SegmentCancelled(session_id, request.cancel_segment.segment))
        case "credit":
            credit = request.credit
            key = SegmentKey(session_id, credit.segment)
            stage.handle(Credited(key, credit.edge, REPLY, credit.positions))
        case "progress":
            key = SegmentKey(session_id, request.progress.segment)
            stage.handle(UpstreamProgressed(key))
        case "gone":
            gone = request.gone
            stage.handle(ProducerGone(SegmentKey(session_id, gone.segment), gone.role))
        case "open":
            raise FailedPrecondition("open: the session is open already", field="open")
        case _:
            raise InvalidArgument("a session request without a message")


def _take_chunk(stage: Stage, session_id: str, message: chunk_pb2.Chunk) -> None:
    chunk = chunk_from_proto(message)
    if chunk.session_id != session_id:
        raise InvalidArgument(
            "chunk.session_id: not this stream's session", field="chunk.session_id"
        )
    stage.handle(ChunkArrived(chunk, ""))


async def _opening(
    incoming: AsyncIterator[session_pb2.SessionRequest], timeout_s: float
) -> session_pb2.SessionOpen:
    """Return the first message of a stream, which must be `open`, within `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            first = await anext(incoming, None)
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"open: nothing came for {timeout_s:g} s (hold_timeout_s)", field="open"
        ) from error
    if first is None or not first.HasField("open"):
        raise InvalidArgument("the first message of a session must be `open`", field="open")
    return first.open


def _session_request(request: session_pb2.SessionOpen, identity: StageIdentity) -> SessionRequest:
    """Return the checked `open` of a stream."""
    expected = {
        "pipeline": identity.pipeline.name,
        "checkpoint_fingerprint": identity.facts.checkpoint_fingerprint,
    }
    for name, here in expected.items():
        asked = getattr(request, name)
        if asked and asked != here:
            raise FailedPrecondition(
                f"open.{name}: {asked} was asked for, this stage has {here}", field=f"open.{name}"
            )
    return SessionRequest(
        session_id=request.session_id,
        routes={
            route.edge: tuple(
                Destination(each.stage.address, each.stage.boot_id) for each in route.destinations
            )
            for route in request.routes
        },
        stall_timeout_s=request.limits.stall_timeout_s,
        windows=dict(request.windows),
    )


def segment_request(request: session_pb2.SegmentOpen, role: str) -> SegmentRequest:
    """Return the part of a `segment_open` that concerns this stage, checked."""
    delivery: dict[str, Delivery] = {
        edge: value
        for edge, proto in request.delivery.items()
        if (value := delivery_from_proto(proto)) is not None
    }
    return SegmentRequest(
        segment=request.segment,
        sampling=sampling_from_proto(request.sampling[role], field=f"sampling.{role}"),
        voice=request.voice,
        outputs=frozenset(request.outputs),
        delivery=delivery,
        policy=policy_from_proto(request.chunk_policy)
        if request.HasField("chunk_policy")
        else None,
        deadline_s=request.deadline_s,
        last=request.last,
        options=option_values_from_proto(request.options),
        live=request.live,
        history=history_from_proto(request.history) if request.HasField("history") else None,
        choice=request.choice,
    )


def _response(
    reply: Reply, identity: StageIdentity, *, one_answer: bool
) -> session_pb2.SessionResponse | None:
    answer = _one_answer(reply) if one_answer else reply
    match answer:
        case Chunk():
            response = session_pb2.SessionResponse()
            put_chunk(answer, response.chunk)
            return response
        case Opened():
            opened = session_pb2.SessionOpened(boot_id=identity.boot_id)
            return session_pb2.SessionResponse(opened=opened)
        case SegmentOpened(key):
            segment_opened = session_pb2.SegmentOpened(segment=key.segment)
            return session_pb2.SessionResponse(segment_opened=segment_opened)
        case Suspended(_, edge, address):
            suspended = session_pb2.SessionSuspended(
                edge=edge, address=address, resume_window_s=identity.resume_window_s
            )
            return session_pb2.SessionResponse(suspended=suspended)
        case Progress(key):
            progress = session_pb2.Progress(segment=key.segment)
            return session_pb2.SessionResponse(progress=progress)
        case SegmentRefused(key, error):
            refused = session_pb2.SegmentRefused(segment=key.segment, error=error_to_proto(error))
            return session_pb2.SessionResponse(segment_refused=refused)
        case Report():
            return session_pb2.SessionResponse(report=_report(answer))
        case End(_, error) if error is not None:
            return session_pb2.SessionResponse(error=error_to_proto(error))
    return None


def _one_answer(reply: Reply) -> Reply | None:
    """Merge the two answers to an `open` with a segment: it is opened when its segment is."""
    match reply:
        case Opened():
            return None
        case SegmentOpened(SegmentKey(session_id, 0)):
            return Opened(session_id)
    return reply


def _report(report: Report) -> session_pb2.SegmentReport:
    return session_pb2.SegmentReport(
        segment=report.key.segment,
        finish_reason=finish_reason_to_proto(report.finish_reason),
        input_positions=report.input_positions,
        input_audio_positions=report.input_audio_positions,
        input_image_positions=report.input_image_positions,
        input_cached_positions=report.input_cached_positions,
        output_positions=report.output_positions,
        first_input_s=report.first_input_s,
        first_output_s=report.first_output_s,
        last_output_s=report.last_output_s,
        busy_s=report.busy_s,
    )
