"""The gRPC service of a stage, which converts between messages and values."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing

import grpc
from google.protobuf.message import DecodeError

from antiphon.deadlines.wait_deadline import WaitDeadline
from antiphon.errors import (
    AntiphonError,
    DataLoss,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from antiphon.runtime.server.callers import Callers
from antiphon.runtime.server.description import StageIdentity, describe, load_to_proto
from antiphon.runtime.server.line_streams import LineStreams
from antiphon.runtime.server.link_port import LinkPort
from antiphon.runtime.server.served_lines import ServedLines
from antiphon.runtime.server.served_session import ServedSession, check_opening, refusal
from antiphon.runtime.server.stage import Stage
from antiphon.tracing.tracing import Tracing
from antiphon.transport.link.incoming.connection import LinkContext
from antiphon.v1 import session_pb2, stage_pb2, stage_pb2_grpc
from antiphon.wire.checksum import CorruptMessage, undamaged
from antiphon.wire.frames import CameOnLink
from antiphon.wire.status import abort

SessionContext = grpc.aio.ServicerContext[session_pb2.SessionRequest, session_pb2.SessionResponse]
LineContext = grpc.aio.ServicerContext[stage_pb2.LineRequest, stage_pb2.LineResponse]

log = logging.getLogger(__name__)

_LOADING = Unavailable("the model is still loading", retry_after_s=1.0)

ANYBODY = Callers()


class StageServicer(stage_pb2_grpc.StageServiceServicer):
    """Serves a stage over gRPC. Until `serve` is called, every call fails because the model is
    still loading.
    """

    def __init__(self, tracing: Tracing | None = None, callers: Callers = ANYBODY) -> None:
        self._tracing = tracing or Tracing()
        self._callers = callers
        self._stage: Stage | None = None
        self._identity: StageIdentity | None = None
        self._link_port: LinkPort | None = None
        self._line_streams: LineStreams | None = None

    def serve(self, stage: Stage, identity: StageIdentity, link_port: LinkPort) -> None:
        """Start accepting sessions, because the model has been loaded."""
        self._stage, self._identity, self._link_port = stage, identity, link_port
        patience_s = stage.limits.idle_session_timeout_s

        def served(opening: session_pb2.SessionOpen, on_reply: Callable[[], None]) -> ServedSession:
            return ServedSession(stage, identity, self._tracing, opening, on_reply)

        self._line_streams = LineStreams(
            lambda: ServedLines(served, identity.role, patience_s, stage.gathering),
            patience_s,
            identity.resume_window_s,
            stage.closed,
            stage.suspensions,
            stage.limits.max_sessions,
        )

    async def Describe(
        self,
        request: stage_pb2.DescribeRequest,
        context: grpc.aio.ServicerContext[stage_pb2.DescribeRequest, stage_pb2.DescribeResponse],
    ) -> stage_pb2.DescribeResponse:
        """Return the stage's description and its current load."""
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

    # The handlers write through the context rather than being generators. When a call is cancelled,
    # its coroutine is cancelled as well. An abandoned generator, on the other hand, would hold on
    # to its session until it is garbage collected.
    async def RunSession(  # type: ignore[override]
        self,
        requests: AsyncIterable[session_pb2.SessionRequest | CorruptMessage],
        context: SessionContext,
    ) -> None:
        """Run a single session. All of its resources have been freed by the time this returns or
        raises.
        """
        await self._callers.check_session(context)
        if self._stage is None or self._identity is None:
            await abort(context, _LOADING)
        stage, identity = self._stage, self._identity
        incoming = undamaged(requests)
        try:
            opening = await _opening(incoming, stage.limits.hold_timeout_s)
            session = ServedSession(stage, identity, self._tracing, opening)
        except (AntiphonError, DecodeError) as error:
            await context.write(refusal(error, identity.role))
            return
        reader = asyncio.create_task(_read(session, opening, incoming))
        del opening  # It may be large, and the reader needs it only to begin with.
        patience_s = stage.limits.idle_session_timeout_s
        unsent: AntiphonError | None = None
        try:
            async with WaitDeadline(patience_s) as patience:
                async for reply in session.replies:
                    if (response := session.response(reply)) is not None:
                        patience.begin()
                        await context.write(response)
                        patience.end()
        except grpc.aio.InternalError:
            log.info("session %s: its client has disconnected", session.session_id)
            unsent = Unavailable("the session has ended, because a message could not be sent")
        except TimeoutError:
            log.warning("session %s: its client isn't reading", session.session_id)
            unsent = DeadlineExceeded(f"the client has not read anything for {patience_s:g} s")
        finally:
            session.close()
            reader.cancel()
            await asyncio.wait([reader])
        if unsent is not None:
            # If the client is still connected, the call must not end as it does when the session is
            # complete.
            unsent.stage = identity.role
            await abort(context, unsent)

    async def RunSessions(  # type: ignore[override]
        self,
        requests: AsyncIterable[stage_pb2.LineRequest | CorruptMessage],
        context: LineContext,
    ) -> None:
        """Run one call of a stream that carries many sessions of one gateway."""
        await self._callers.check_session(context)
        if self._line_streams is None:
            await abort(context, _LOADING)
        try:
            await self._line_streams.serve(undamaged(requests), context.write)
        except (Unavailable, InvalidArgument, NotFound, DataLoss) as error:
            await abort(context, error)
        except DecodeError:
            await abort(context, InvalidArgument("the request is not a valid LineRequest"))
        except (grpc.aio.InternalError, TimeoutError):
            pass  # The stream has logged it, and the client has gone.

    async def Link(  # type: ignore[override]
        self, requests: AsyncIterable[CameOnLink], context: LinkContext
    ) -> None:
        """Receive chunks from an upstream process. They can belong to any number of sessions."""
        await self._callers.check_link(context)
        if self._link_port is None:
            await abort(context, _LOADING)
        await self._link_port.serve(requests, context)

    async def WatchLoad(  # type: ignore[override]
        self,
        request: stage_pb2.WatchLoadRequest,
        context: grpc.aio.ServicerContext[stage_pb2.WatchLoadRequest, stage_pb2.StageLoad],
    ) -> None:
        """Stream the stage's load until the stage shuts down."""
        await self._callers.check_session(context)
        if self._stage is None or self._identity is None:
            await abort(context, _LOADING)
        async with aclosing(self._stage.load_watch.follow()) as loads:
            async for load in loads:
                await context.write(load_to_proto(load, self._identity))


async def _read(
    session: ServedSession,
    opening: session_pb2.SessionOpen,
    incoming: AsyncIterator[session_pb2.SessionRequest],
) -> None:
    """Handle the requests of a session until the client closes its side."""
    session.begin(opening)
    del opening
    try:
        async for request in incoming:
            session.handle(request)
    except Exception as error:
        # Report every exception. Otherwise, the session would wait for its reader forever.
        session.fail(error)
    else:
        session.done()


async def _opening(
    incoming: AsyncIterator[session_pb2.SessionRequest], timeout_s: float
) -> session_pb2.SessionOpen:
    """Return the first message of a stream, which must be an `open` message. It has to arrive
    within `timeout_s` seconds.
    """
    try:
        async with asyncio.timeout(timeout_s):
            first = await anext(incoming, None)
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"open: no message was received for {timeout_s:g} s", field="open"
        ) from error
    return check_opening(first)
