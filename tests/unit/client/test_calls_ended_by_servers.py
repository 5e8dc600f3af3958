"""A server that ends a bidirectional call while the client is still writing: its messages and its
status reach the reader of either client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import grpc
import pytest

import antiphon
from antiphon.client.calls import MOST_WAITING
from antiphon.errors import (
    AntiphonError,
    Cancelled,
    FailedPrecondition,
    InvalidArgument,
    Unavailable,
)
from antiphon.v1 import session_pb2, stage_pb2, stage_pb2_grpc
from antiphon.wire.convert import error_to_proto
from antiphon.wire.status import ERROR_METADATA_KEY

REFUSED = error_to_proto(InvalidArgument("voice: unknown voice 'nobody'", field="voice"))
TURN = session_pb2.SegmentOpen(segment=0)

Requests = Iterator[session_pb2.SessionRequest]
End = Callable[[grpc.ServicerContext], Iterator[session_pb2.SessionResponse]]


def opened(boot_id: str) -> session_pb2.SessionResponse:
    return session_pb2.SessionResponse(opened=session_pb2.SessionOpened(boot_id=boot_id))


def by_message(context: grpc.ServicerContext) -> Iterator[session_pb2.SessionResponse]:
    """The way of a stage."""
    yield opened("first")
    yield opened("second")
    yield session_pb2.SessionResponse(error=REFUSED)


def by_status(context: grpc.ServicerContext) -> Iterator[session_pb2.SessionResponse]:
    """The way of a stage that does not know the caller, and of the gateway."""
    yield opened("first")
    yield opened("second")
    context.set_trailing_metadata(((ERROR_METADATA_KEY, REFUSED.SerializeToString()),))
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, REFUSED.message)


def by_status_of_its_own_client(
    context: grpc.ServicerContext,
) -> Iterator[session_pb2.SessionResponse]:
    """The way of a relay that passes on what grpc.aio has set for its own call."""
    yield opened("first")
    context.abort(grpc.StatusCode.INTERNAL, "Internal error from Core")


def without_error(context: grpc.ServicerContext) -> Iterator[session_pb2.SessionResponse]:
    yield opened("first")
    yield opened("second")


class EndingStage(stage_pb2_grpc.StageServiceServicer):
    """Ends each session after its first request."""

    def __init__(self, end: End) -> None:
        self._end = end
        self.address = ""
        self.ended = threading.Event()

    def RunSession(
        self, request_iterator: Requests, context: grpc.ServicerContext
    ) -> Iterator[session_pb2.SessionResponse]:
        context.add_callback(self.ended.set)
        next(request_iterator)
        yield from self._end(context)

    def Describe(
        self, request: stage_pb2.DescribeRequest, context: grpc.ServicerContext
    ) -> stage_pb2.DescribeResponse:
        return stage_pb2.DescribeResponse(role="talker")


ServeStage = Callable[[End], EndingStage]


@pytest.fixture
def serve_stage() -> Iterator[ServeStage]:
    servers: list[tuple[grpc.Server, ThreadPoolExecutor]] = []

    def start(end: End) -> EndingStage:
        workers, stage = ThreadPoolExecutor(max_workers=2), EndingStage(end)
        server = grpc.server(workers)
        stage_pb2_grpc.add_StageServiceServicer_to_server(stage, server)
        stage.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        servers.append((server, workers))
        return stage

    yield start
    for server, workers in servers:
        server.stop(grace=None).wait()
        workers.shutdown()


Outcome = tuple[list[str], AntiphonError | None]
Session = antiphon.AsyncStageSession


class Blocking:
    """A session of the blocking client with the interface of the asyncio client's."""

    def __init__(self, session: antiphon.StageSession) -> None:
        self._session = session

    async def open_segment(self, segment: session_pb2.SegmentOpen) -> None:
        await asyncio.to_thread(self._session.open_segment, segment)

    async def __anext__(self) -> session_pb2.SessionResponse:
        ended = object()
        message = await asyncio.to_thread(next, self._session, ended)
        if message is ended:
            raise StopAsyncIteration
        assert isinstance(message, session_pb2.SessionResponse)
        return message


@asynccontextmanager
async def ended_async(stage: EndingStage) -> AsyncIterator[Session | Blocking]:
    async with antiphon.AsyncStageClient(stage.address) as client, client.session({}) as session:
        await asyncio.to_thread(stage.ended.wait)
        # This answer follows the end of the session on the same connection.
        await client.describe()
        yield session


@asynccontextmanager
async def ended_blocking(stage: EndingStage) -> AsyncIterator[Session | Blocking]:
    with antiphon.StageClient(stage.address) as client, client.session({}) as session:
        await asyncio.to_thread(stage.ended.wait)
        await asyncio.to_thread(client.describe)
        yield Blocking(session)


clients = pytest.mark.parametrize("ended", [ended_async, ended_blocking])
Ended = Callable[[EndingStage], AbstractAsyncContextManager[Session | Blocking]]


async def outcome(session: Session | Blocking) -> Outcome:
    """What can be read, and the error after it."""
    messages = []
    try:
        while True:
            message = await anext(session)
            messages.append(message.opened.boot_id)
    except StopAsyncIteration:
        return messages, None
    except AntiphonError as error:
        return messages, error


@clients
@pytest.mark.parametrize("end", [by_message, by_status, without_error])
async def test_reader_gets_everything_that_was_sent_before_a_write_failed(
    serve_stage: ServeStage, ended: Ended, end: End
) -> None:
    async with ended(serve_stage(end)) as session:
        for _ in range(3 * MOST_WAITING):
            await session.open_segment(TURN)
        messages, error = await outcome(session)
    assert messages == ["first", "second"]
    if end is without_error:
        assert error is None
    else:
        assert isinstance(error, InvalidArgument)
        assert (error.message, error.field) == (REFUSED.message, "voice")


@clients
async def test_status_is_the_servers_when_asked_again(
    serve_stage: ServeStage, ended: Ended
) -> None:
    async with ended(serve_stage(by_status)) as session:
        await session.open_segment(TURN)
        await outcome(session)
        for _ in range(2):
            messages, error = await outcome(session)
            assert messages == []
            assert isinstance(error, InvalidArgument)
            with pytest.raises(InvalidArgument, match="unknown voice"):
                await session.open_segment(TURN)


@clients
async def test_status_that_looks_like_that_of_a_failed_write_ends_the_call(
    serve_stage: ServeStage, ended: Ended
) -> None:
    async with ended(serve_stage(by_status_of_its_own_client)) as session:
        messages, error = await outcome(session)
    assert messages == ["first"]
    assert isinstance(error, Unavailable)


@clients
async def test_nothing_can_be_sent_after_the_end_was_read(
    serve_stage: ServeStage, ended: Ended
) -> None:
    async with ended(serve_stage(without_error)) as session:
        await session.open_segment(TURN)
        assert await outcome(session) == (["first", "second"], None)
        assert await outcome(session) == ([], None)
        with pytest.raises(FailedPrecondition, match="the call has ended"):
            await session.open_segment(TURN)


@clients
async def test_session_that_was_left_has_no_messages(serve_stage: ServeStage, ended: Ended) -> None:
    async with ended(serve_stage(by_status)) as session:
        await session.open_segment(TURN)
        assert (await anext(session)).opened.boot_id == "first"
    messages, error = await outcome(session)
    assert messages == []
    assert isinstance(error, Cancelled)
