"""What a reader of a call may rely on, with both clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

import antiphon
from antiphon.client.blocking_channel import BlockingChannel
from antiphon.client.calls import Method, now
from antiphon.client.connection import target
from antiphon.errors import (
    AntiphonError,
    Cancelled,
    DataLoss,
    FailedPrecondition,
    ResourceExhausted,
)
from tests.unit.client.call_scripts import TYPED_ERROR, End, Script, Step
from tests.unit.client.script_players import TaskTwin, ThreadTwin, settle
from tests.unit.client.script_sessions import SURFACES
from tests.unit.client.scripted_server import BOUND_S, DAMAGED, Scripted, ScriptedServer

SILENT = Script(0, (Step.SEND,), End.SILENT, (), ())
twins = pytest.mark.parametrize("blocking", [False, True], ids=["asyncio", "blocking"])
surfaces = pytest.mark.parametrize("surface", SURFACES)
Serve = Callable[[Scripted, Script], ScriptedServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that play a script; all stop at the end of the test."""
    running: list[ScriptedServer] = []

    def start(scripted: Scripted, script: Script) -> ScriptedServer:
        running.append(ScriptedServer(scripted, script))
        return running[-1]

    yield start
    for server in running:
        server.stop()


async def with_either(blocking: bool, work: Callable[[Any], Any]) -> None:
    """Run `work` with tasks, or in a thread and with threads."""
    if not blocking:
        await work(TaskTwin())
        return
    await asyncio.to_thread(lambda: asyncio.run(work(ThreadTwin())))


@surfaces
@twins
async def test_second_reader_is_refused_and_the_first_reads_on(
    serve: Serve, surface: str, blocking: bool
) -> None:
    scripted, opens = SURFACES[surface]

    async def work(twin: Any) -> None:
        server = serve(scripted, SILENT)
        session = opens(server.address, blocking=blocking)
        await session.open()
        assert await session.read() == 0
        refused: list[AntiphonError] = []
        first = threading.Event()

        async def read() -> None:
            try:
                await session.read()
            except AntiphonError as error:
                refused.append(error)
            first.set()

        # One of them waits, whichever comes first, and the other is refused.
        readers = [twin.start(read()) for _ in range(2)]
        await twin.wait(lambda: first.wait(BOUND_S))
        assert [type(each) for each in refused] == [FailedPrecondition]
        assert "read from one of them only" in refused[0].message
        assert not server.over.is_set()
        session.cancel()
        for reader in readers:
            await twin.join(reader)
        assert [type(each) for each in refused] == [FailedPrecondition, Cancelled]
        await session.close_client()

    await with_either(blocking, work)


@twins
async def test_malformed_answer_of_a_unary_call_is_data_loss(serve: Serve, blocking: bool) -> None:
    async def work(twin: Any) -> None:
        server = serve(SURFACES["stage"][0], SILENT)
        server.answer = lambda context: DAMAGED
        kind = antiphon.StageClient if blocking else antiphon.AsyncStageClient
        stage = kind(server.address)
        with pytest.raises(DataLoss, match=r"malformed message from .*/Describe"):
            await settle(stage.describe())
        await settle(stage.close())

    await with_either(blocking, work)


@twins
async def test_unary_call_raises_cancelled_when_another_task_closes_the_client(
    serve: Serve, blocking: bool
) -> None:
    async def work(twin: Any) -> None:
        server = serve(SURFACES["stage"][0], SILENT)
        asked, over = threading.Event(), threading.Event()

        def hang(context: grpc.ServicerContext) -> bytes:
            context.add_callback(over.set)
            asked.set()
            over.wait()
            return b""

        server.answer = hang
        kind = antiphon.StageClient if blocking else antiphon.AsyncStageClient
        stage = kind(server.address)
        raised: list[AntiphonError] = []

        async def ask() -> None:
            try:
                await settle(stage.describe(timeout_s=3600.0))
            except AntiphonError as error:
                raised.append(error)

        asking = twin.start(ask())
        await twin.wait(lambda: asked.wait(BOUND_S))
        await settle(stage.close())
        await twin.join(asking)
        assert [type(each) for each in raised] == [Cancelled]

    await with_either(blocking, work)


@twins
async def test_writer_raises_the_error_that_the_reader_has_read_even_after_a_cancellation(
    serve: Serve, blocking: bool
) -> None:
    async def work(twin: Any) -> None:
        scripted, opens = SURFACES["stage"]
        server = serve(scripted, Script(0, (), End.TYPED, (), ()))
        session = opens(server.address, blocking=blocking)
        await session.open()
        # The error is the stage's last message, and so the client cancels the rest of the call.
        for _ in range(2):
            with pytest.raises(ResourceExhausted, match=TYPED_ERROR.message):
                await session.read()
            with pytest.raises(ResourceExhausted, match=TYPED_ERROR.message):
                await session.write(0)
            session.cancel()
        await session.close_client()

    await with_either(blocking, work)


@pytest.mark.parametrize("streams", [False, True])
def test_blocking_call_raises_failed_precondition_when_the_client_is_closed_as_it_starts(
    deaf_address: str, streams: bool
) -> None:
    channel = BlockingChannel(target(deaf_address, False, None, key_in_clear=False))

    class Closing:
        """gRPC serializes the request between `check_open` and the start of the call."""

        @staticmethod
        def SerializeToString(request: object) -> bytes:
            channel.close()
            return b""

    method: Method[Any, Any] = Method("/scripts/Echo", Closing, bytes)

    def start() -> None:
        if streams:
            channel.stream(method, Closing(), 60.0, None)
        else:
            now(channel.ask(method, Closing(), 60.0))

    with pytest.raises(FailedPrecondition, match="the client is closed"):
        start()
