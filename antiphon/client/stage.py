"""Makes calls to a single stage, for load tests and debugging. Both clients share this module."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Mapping, Sequence

from antiphon.client.calls import Channel, Method, TwoWayCall
from antiphon.client.checks import named, of_type, unicode_text, wrong_type
from antiphon.client.connection import CHANNEL_OPTIONS, Options
from antiphon.client.retrying import Retry, ask
from antiphon.errors import FailedPrecondition
from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2
from antiphon.wire.convert import error_from_proto

SERVICE = "/antiphon.v1.StageService"
DESCRIBE = Method(
    f"{SERVICE}/Describe", stage_pb2.DescribeRequest, stage_pb2.DescribeResponse.FromString
)
RUN_SESSION = Method(
    f"{SERVICE}/RunSession", session_pb2.SessionRequest, session_pb2.SessionResponse.FromString
)
STAGE_OPTIONS: Options = (
    *CHANNEL_OPTIONS,
    # Large enough to send the hidden states of a long prompt in a single message. Stages limit the
    # memory of each session.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)

Request = session_pb2.SessionRequest
Call = TwoWayCall[session_pb2.SessionRequest, session_pb2.SessionResponse]


class ServingStatus(enum.Enum):
    """The health of a stage. It states whether the stage is accepting sessions."""

    UNKNOWN = "unknown"
    SERVING = "serving"
    NOT_SERVING = "not_serving"


# The encoded values of `grpc.health.v1.HealthCheckResponse`, which has a single one-byte field.
# Defining them here avoids a dependency on that package.
_HEALTH = {
    b"\x08\x01": ServingStatus.SERVING,
    b"\x08\x02": ServingStatus.NOT_SERVING,
}
HEALTH = Method(
    "/grpc.health.v1.Health/Check",
    # This message is empty, and so is the request for a health check of the whole process.
    stage_pb2.DescribeRequest,
    lambda data: _HEALTH.get(data, ServingStatus.UNKNOWN),
)


async def describe(channel: Channel, timeout_s: float, retry: Retry) -> stage_pb2.DescribeResponse:
    """Return the stage's description."""
    return await ask(channel, DESCRIBE, stage_pb2.DescribeRequest(), timeout_s, retry)


async def health(channel: Channel, timeout_s: float, retry: Retry) -> ServingStatus:
    """Return whether the stage accepts sessions."""
    return await ask(channel, HEALTH, stage_pb2.DescribeRequest(), timeout_s, retry)


class StageTalk:
    """A session on a single stage. It ends when its call ends. Cancelling the call frees all of its
    resources.
    """

    def __init__(
        self,
        start: Callable[[], Call],
        edges: Mapping[str, Sequence[str]],
        session_id: str,
    ) -> None:
        self.session_id = unicode_text("session_id", session_id) or f"sdk-{uuid.uuid4().hex}"
        routes = [_route(name, addresses) for name, addresses in named("edges", edges).items()]
        self._opening = session_pb2.SessionOpen(session_id=self.session_id, routes=routes)
        self._start = start
        self._call: Call | None = None
        self._segment = 0

    async def open(self) -> None:
        """Register the session."""
        self._call = self._start()
        await self._call.write(Request(open=self._opening))

    async def open_segment(self, segment: session_pb2.SegmentOpen) -> None:
        """Open a turn."""
        self._segment = of_type("segment", segment, session_pb2.SegmentOpen).segment
        await self.send(Request(segment_open=segment))

    async def send_chunk(self, chunk: chunk_pb2.Chunk) -> None:
        """Send an input chunk. The session ID is filled in automatically."""
        sent = chunk_pb2.Chunk()
        sent.CopyFrom(of_type("chunk", chunk, chunk_pb2.Chunk))
        sent.session_id = self.session_id
        await self.send(Request(chunk=sent))

    async def finish_input(self) -> None:
        """Signal that the most recently opened turn will receive no more input."""
        finished = session_pb2.InputFinished(segment=self._segment)
        await self.send(Request(input_finished=finished))

    async def cancel_segment(self) -> None:
        """Cancel the most recently opened turn. The stage responds with a `report`."""
        cancelled = session_pb2.CancelSegment(segment=self._segment)
        await self.send(Request(cancel_segment=cancelled))

    async def send(self, request: session_pb2.SessionRequest) -> None:
        """Send an arbitrary message."""
        await self._open_call().write(of_type("request", request, Request))

    async def next_response(self) -> session_pb2.SessionResponse | None:
        """Return the next message, or None at the end. If the session has failed, raises
        its error.
        """
        call = self._open_call()
        response = await call.read()
        if response is not None and response.HasField("error"):
            # Another thread may have cancelled the call first.
            raise call.fail(error_from_proto(response.error))
        return response

    def finish(self) -> None:
        """Stop sending messages. The stage ends the session once its turn is complete."""
        self._open_call().finish()

    def cancel(self) -> None:
        """End the session."""
        if self._call is not None:
            self._call.cancel()

    def _open_call(self) -> Call:
        if self._call is None:
            raise FailedPrecondition("the session is not open; use it as a context manager first")
        return self._call


def stage_talk(
    channel: Channel,
    edges: Mapping[str, Sequence[str]],
    session_id: str,
    timeout_s: float,
    idle_s: float | None,
) -> StageTalk:
    """Return a session that has not been opened yet."""
    return StageTalk(lambda: channel.exchange(RUN_SESSION, timeout_s, idle_s), edges, session_id)


def _route(edge: str, addresses: object) -> session_pb2.Route:
    if isinstance(addresses, str | bytes) or not isinstance(addresses, Sequence):
        raise wrong_type(f"edges.{edge}", "a sequence of addresses", addresses)
    targets = [session_pb2.Destination(reply=session_pb2.ReplyTarget())]
    for address in addresses:
        target = session_pb2.StageTarget(address=unicode_text(f"edges.{edge}", address))
        targets.append(session_pb2.Destination(stage=target))
    return session_pb2.Route(edge=edge, destinations=targets)
