"""A session on a stage. It can use any type of stream. It converts requests to facts and replies to
responses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from google.protobuf.message import DecodeError

from antiphon.errors import (
    AntiphonError,
    Cancelled,
    FailedPrecondition,
    InvalidArgument,
    unexpected,
)
from antiphon.runtime.server.description import StageIdentity
from antiphon.runtime.server.outbox import Outbox
from antiphon.runtime.server.session_trace import SessionTrace
from antiphon.runtime.server.stage import Reply
from antiphon.runtime.session.facts import (
    ChunkArrived,
    ClientDone,
    Credited,
    Fact,
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
from antiphon.v1 import chunk_pb2, session_pb2
from antiphon.values.chunk import Chunk
from antiphon.values.segment import Delivery, SegmentKey
from antiphon.wire.chunks import chunk_from_proto, put_chunk
from antiphon.wire.convert import (
    delivery_from_proto,
    error_to_proto,
    finish_reason_to_proto,
    policy_from_proto,
    sampling_from_proto,
)
from antiphon.wire.history import history_from_proto
from antiphon.wire.options import option_values_from_proto

log = logging.getLogger(__name__)


class SessionRegistry(Protocol):
    """The stage interface that sessions depend on. `Stage` implements it."""

    def open(
        self, request: SessionRequest, on_reply: Callable[[], None] | None = None
    ) -> Outbox[Reply]:
        """Register a session."""

    def handle(self, *facts: Fact) -> None:
        """Process facts."""

    def stream_lost(self, session_id: str) -> None:
        """End a session whose stream is gone."""


class ServedSession:
    """A session that is registered with the stage. Call `close` when its stream ends for any
    reason.

    A session is created from the `open` message of a stream. Raises `AntiphonError` or
    `DecodeError` if the stage rejects it. Use `refusal` to convert these errors to a response.
    """

    def __init__(
        self,
        stage: SessionRegistry,
        identity: StageIdentity,
        tracing: Tracing,
        opening: session_pb2.SessionOpen,
        on_reply: Callable[[], None] | None = None,
    ) -> None:
        request = _session_request(opening, identity)
        self.session_id = request.session_id
        self.replies: Outbox[Reply] = stage.open(request, on_reply)
        self._stage = stage
        self._identity = identity
        self._trace = SessionTrace(tracing, identity.role)
        self._one_answer = opening.HasField("first_segment")
        self._failed = False

    def begin(self, opening: session_pb2.SessionOpen) -> None:
        """Open the first segment and read its input, if the opening message contains them. If there
        is an error, the session ends.
        """
        try:
            if self._one_answer:
                self._trace.opened(opening.first_segment)
                first = segment_request(opening.first_segment, self._identity.role)
                self._stage.handle(SegmentRequested(self.session_id, first))
            for chunk in opening.first_input:
                self._take_chunk(chunk)
        except Exception as error:
            self.fail(error)

    def handle(self, request: session_pb2.SessionRequest) -> None:
        """Handle a request. If there is an error, the session ends and further requests are
        ignored.
        """
        if self._failed:
            return
        try:
            self._act(request)
        except Exception as error:
            self.fail(error)

    def done(self) -> None:
        """Record that the client won't send any more requests."""
        if not self._failed:
            self._stage.handle(ClientDone(self.session_id))

    def fail(self, error: Exception) -> None:
        """End the session with an error. Its end will then show up in `replies`."""
        self._failed = True
        self._stage.handle(SessionFaulted(self.session_id, _fault(error)))

    def response(self, reply: Reply) -> session_pb2.SessionResponse | None:
        """Convert a reply to a response. Returns None if there is nothing to send. If there is an
        error, the session ends.
        """
        self._trace.told(reply)
        try:
            return _response(reply, self._identity, one_answer=self._one_answer)
        except Exception as error:
            self.fail(error)
            return None

    def close(self) -> None:
        """Free all resources of the session."""
        self._trace.end(Cancelled("the session's stream ended"))
        self._stage.stream_lost(self.session_id)

    def _act(self, request: session_pb2.SessionRequest) -> None:
        session_id, handle = self.session_id, self._stage.handle
        match request.WhichOneof("message"):
            case "segment_open":
                self._trace.opened(request.segment_open)
                segment = segment_request(request.segment_open, self._identity.role)
                handle(SegmentRequested(session_id, segment))
            case "chunk":
                self._take_chunk(request.chunk)
            case "input_finished":
                handle(InputFinished(session_id, request.input_finished.segment))
            case "cancel_segment":
                handle(SegmentCancelled(session_id, request.cancel_segment.segment))
            case "credit":
                credit = request.credit
                key = SegmentKey(session_id, credit.segment)
                handle(Credited(key, credit.edge, REPLY, credit.positions))
            case "progress":
                handle(UpstreamProgressed(SegmentKey(session_id, request.progress.segment)))
            case "gone":
                gone = request.gone
                handle(ProducerGone(SegmentKey(session_id, gone.segment), gone.role))
            case "open":
                raise FailedPrecondition("open: the session is already open", field="open")
            case _:
                raise InvalidArgument("the session request has no message")

    def _take_chunk(self, message: chunk_pb2.Chunk) -> None:
        chunk = chunk_from_proto(message)
        if chunk.session_id != self.session_id:
            raise InvalidArgument(
                "chunk.session_id: is not the session of this stream", field="chunk.session_id"
            )
        self._stage.handle(ChunkArrived(chunk, ""))


def refusal(error: Exception, role: str) -> session_pb2.SessionResponse:
    """Return the response to a session that could not be opened."""
    fault = _fault(error)
    fault.stage = fault.stage or role
    return session_pb2.SessionResponse(error=error_to_proto(fault))


def check_opening(first: session_pb2.SessionRequest | None) -> session_pb2.SessionOpen:
    """Return the `open` message of a session. Raises `InvalidArgument` if the first message isn't
    one.
    """
    if first is None or not first.HasField("open"):
        raise InvalidArgument("the first message of a session must be `open`", field="open")
    return first.open


def _fault(error: Exception) -> AntiphonError:
    """Convert an exception to the error that is reported for the session."""
    if isinstance(error, AntiphonError):
        return error
    if isinstance(error, DecodeError):
        return InvalidArgument("the request is not a valid SessionRequest")
    log.error("the stream of a session failed", exc_info=error)
    return unexpected(error)


def _session_request(request: session_pb2.SessionOpen, identity: StageIdentity) -> SessionRequest:
    """Validate and convert the `open` message of a stream."""
    expected = {
        "pipeline": identity.pipeline.name,
        "checkpoint_fingerprint": identity.facts.checkpoint_fingerprint,
    }
    for name, here in expected.items():
        asked = getattr(request, name)
        if asked and asked != here:
            raise FailedPrecondition(
                f"open.{name}: is {asked}, but this stage has {here}", field=f"open.{name}"
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
    """Validate and convert those parts of a `segment_open` message that concern this stage."""
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
        case Progress(key, done, due):
            progress = session_pb2.Progress(segment=key.segment, steps_done=done, steps_due=due)
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
    """Merge the two replies to an `open` message that contains a segment. The session is considered
    open once its segment is open.
    """
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
