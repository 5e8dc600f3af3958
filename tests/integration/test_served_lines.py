"""Many sessions on one stream of a stage: what they share, and what they do not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import grpc
import pytest

from antiphon.errors import ResourceExhausted
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.server import served_lines
from antiphon.runtime.server.line_table import BATCH_REQUESTS
from antiphon.runtime.session.facts import ChunkArrived, Fact
from antiphon.runtime.session.instructions import Admit, EngineCommand, Feed
from antiphon.runtime.stepping.thread import EngineThread
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.values.segment import SegmentKey
from antiphon.wire.chunks import chunk_from_proto, chunk_to_proto
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.stage_harness import LIMITS, RunningStage
from tests.integration.stage_session import Line, Request, StandingStream, codes_chunk, opening

ErrorCode = session_pb2.ErrorCode


async def opened(line: Line, session_id: str) -> None:
    for request in opening(session_id):
        await line.write(request)
    for kind in ("opened", "segment_opened"):
        assert (await line.read()).WhichOneof("message") == kind


async def send_codes(line: Line, session_id: str, *values: int, end: bool = False) -> None:
    chunk = codes_chunk(session_id, 0, list(values), end=end)
    await line.write(Request(chunk=chunk_to_proto(chunk)))


async def samples_of(line: Line) -> list[float]:
    """All samples, up to the end of the line."""
    samples: list[float] = []
    while (response := await line.read()) is not grpc.aio.EOF:
        if response.HasField("chunk") and (tensors := chunk_from_proto(response.chunk).tensors):
            samples += tensors["samples"].tolist()
    return samples


async def released_by(engine: FakeEngine) -> SegmentKey:
    return await asyncio.to_thread(engine.released.get, timeout=60)


async def test_replies_of_one_step_leave_in_one_message(engine: FakeEngine) -> None:
    arrived: asyncio.Queue[str] = asyncio.Queue()

    def record(fact: Fact, *_: object) -> None:
        if isinstance(fact, ChunkArrived):
            arrived.put_nowait(fact.chunk.session_id)

    loaded = LoadedStage(engine, FACTS)
    async with running_stage(loaded, "code2wav", record=record) as running:
        stream = StandingStream(running)
        lines = {name: stream.line() for name in "abc"}
        for name, line in lines.items():
            await opened(line, name)
        engine.gate.clear()
        await send_codes(lines["a"], "a", 1)
        assert await asyncio.to_thread(engine.in_step.wait, 60)
        await send_codes(lines["b"], "b", 2, end=True)
        await send_codes(lines["c"], "c", 3, end=True)
        await lines["a"].write(Request(chunk=chunk_to_proto(codes_chunk("a", 1, [1], end=True))))
        assert sorted([await arrived.get() for _ in range(4)]) == ["a", "a", "b", "c"]
        stream.batches.clear()
        engine.gate.set()
        for line in lines.values():
            await line.done_writing()
        assert await samples_of(lines["a"]) == [1.0] * 8
        assert await samples_of(lines["b"]) == [2.0] * 4
        assert await samples_of(lines["c"]) == [3.0] * 4
        assert any(len(set(batch)) == 3 for batch in stream.batches), stream.batches


async def test_error_ends_one_line_and_no_other(served: RunningStage) -> None:
    stream = StandingStream(served)
    wrong, right = stream.line(), stream.line()
    await wrong.write(Request(credit=session_pb2.OutputCredit(edge="audio")))
    error = (await wrong.read()).error
    assert (error.code, error.field, error.stage) == (
        ErrorCode.ERROR_CODE_INVALID_ARGUMENT,
        "open",
        "code2wav",
    )
    assert await wrong.read() is grpc.aio.EOF
    # Its number is used up: a message of a line that has ended is ignored.
    await wrong.write(opening("late")[0])
    await opened(right, "right")
    assert served.stage.table.session_count == 1
    await send_codes(right, "right", 7, end=True)
    await right.done_writing()
    assert await samples_of(right) == [7.0] * 4


async def test_first_response_states_the_window_of_the_lines_and_the_bound_of_batches(
    served: RunningStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_lines, "WINDOW_BYTES", 4321)
    rpc = stage_stub(served.channel).RunSessions()
    stated = stage_pb2.LineResponse(window_bytes=4321, batch_requests=BATCH_REQUESTS)
    assert await rpc.read() == stated
    rpc.cancel()


def batch(*requests: stage_pb2.LineRequest) -> stage_pb2.LineRequest:
    return stage_pb2.LineRequest(batch=stage_pb2.LineRequests(requests=requests))


def whole_answer(line: Line, session_id: str, *values: int) -> list[stage_pb2.LineRequest]:
    """A session with its only segment, all its input, and that nothing follows."""
    begin = opening(session_id)[0].open
    begin.first_segment.CopyFrom(session_pb2.SegmentOpen(outputs=["audio"], last=True))
    begin.first_input.append(chunk_to_proto(codes_chunk(session_id, 0, list(values), end=True)))
    return [
        stage_pb2.LineRequest(line=line.number, request=Request(open=begin)),
        stage_pb2.LineRequest(line=line.number, done=stage_pb2.LineDone()),
    ]


async def test_sessions_of_one_batch_end_each_by_itself(served: RunningStage) -> None:
    stream = StandingStream(served)
    first, wrong, second = (stream.line() for _ in range(3))
    await stream.rpc.write(
        batch(
            *whole_answer(first, "first", 1),
            stage_pb2.LineRequest(line=wrong.number, done=stage_pb2.LineDone()),
            batch(*whole_answer(wrong, "nested", 3)),
            *whole_answer(second, "second", 2),
        )
    )
    assert (await wrong.read()).error.field == "open"
    assert await wrong.read() is grpc.aio.EOF
    assert await samples_of(first) == [1.0] * 4
    assert await samples_of(second) == [2.0] * 4
    assert served.stage.table.session_count == 0


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[list[EngineCommand]]:
    """The batches of commands that the engine's thread has been given. The session `refused` has no
    room in its mailbox.
    """
    batches: list[list[EngineCommand]] = []
    submit = EngineThread.submit

    def noted(self: EngineThread, commands: Iterable[EngineCommand]) -> object:
        batches.append(list(commands))
        no_room = ResourceExhausted("the mailbox is full")
        refused = [
            (each, no_room)
            for each in batches[-1]
            if each.key.session_id == "refused" and isinstance(each, Admit)
        ]
        taken = [each for each in batches[-1] if each not in [command for command, _ in refused]]
        return [*submit(self, taken), *refused]

    monkeypatch.setattr(EngineThread, "submit", noted)
    return batches


async def test_sessions_of_one_batch_reach_the_engine_together(
    served: RunningStage, submitted: list[list[EngineCommand]]
) -> None:
    stream = StandingStream(served)
    lines = {name: stream.line() for name in "abc"}
    requests = [each for name, line in lines.items() for each in whole_answer(line, name, 1)]
    await stream.rpc.write(batch(*requests))
    for line in lines.values():
        assert await samples_of(line) == [1.0] * 4
    commands = [(type(each), each.key.session_id) for each in submitted[0]]
    assert commands == [(kind, name) for name in "abc" for kind in (Admit, Feed)]


async def test_session_without_room_in_the_engine_ends_alone_in_its_batch(
    served: RunningStage, submitted: list[list[EngineCommand]]
) -> None:
    stream = StandingStream(served)
    lines = {name: stream.line() for name in ("first", "refused", "last")}
    requests = [each for name, line in lines.items() for each in whole_answer(line, name, 1)]
    await stream.rpc.write(batch(*requests))
    assert await samples_of(lines["first"]) == await samples_of(lines["last"]) == [1.0] * 4
    while not (response := await lines["refused"].read()).HasField("error"):
        pass
    assert response.error.code == ErrorCode.ERROR_CODE_RESOURCE_EXHAUSTED
    assert await lines["refused"].read() is grpc.aio.EOF
    assert len(submitted[0]) == 6
    assert served.stage.table.session_count == 0


async def test_batch_of_more_requests_than_stated_ends_the_stream(served: RunningStage) -> None:
    rpc = stage_stub(served.channel).RunSessions()
    await rpc.read()
    done = stage_pb2.LineRequest(line=1, done=stage_pb2.LineDone())
    await rpc.write(batch(*[done] * (BATCH_REQUESTS + 1)))
    with pytest.raises(grpc.aio.AioRpcError, match="at most 64"):
        await rpc.read()
    assert await rpc.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_slow_reader_delays_its_own_line_alone(
    served: RunningStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_lines, "WINDOW_BYTES", 1)
    stream = StandingStream(served)
    slow, quick = stream.line(), stream.line()
    for name, line in (("slow", slow), ("quick", quick)):
        await line.write(opening(name)[0])
        assert (await line.read()).HasField("opened")
    await slow.write(opening("slow")[1])
    await quick.write(opening("quick")[1])
    processed = 1 << 20
    await quick.send(processed_bytes=processed)
    assert (await quick.read()).HasField("segment_opened")
    await send_codes(quick, "quick", 3, end=True)
    await quick.done_writing()
    assert await samples_of(quick) == [3.0] * 4
    assert slow.is_empty
    await slow.send(processed_bytes=processed)
    assert (await slow.read()).HasField("segment_opened")


async def test_reader_that_processes_nothing_loses_its_line(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_lines, "WINDOW_BYTES", 1)
    limits = replace(LIMITS, idle_session_timeout_s=0.2)
    async with running_stage(LoadedStage(engine, FACTS), "code2wav", limits=limits) as running:
        line = StandingStream(running).line()
        for request in opening("stuck"):
            await line.write(request)
        assert (await line.read()).HasField("opened")
        error = (await line.read()).error
        assert error.code == ErrorCode.ERROR_CODE_DEADLINE_EXCEEDED
        assert await line.read() is grpc.aio.EOF
        assert running.stage.table.session_count == 0


async def test_end_of_a_cancelled_line_says_that_its_session_is_gone(served: RunningStage) -> None:
    stream = StandingStream(served)
    cancelled, stays = stream.line(), stream.line()
    await opened(cancelled, "cancelled")
    await opened(stays, "stays")
    await cancelled.send(cancel=stage_pb2.LineCancel())
    assert await cancelled.read() is grpc.aio.EOF
    assert served.stage.table.session_count == 1


async def test_end_of_the_stream_frees_all_sessions(
    served: RunningStage, engine: FakeEngine
) -> None:
    stream = StandingStream(served)
    for name in "ab":
        line = stream.line()
        await opened(line, name)
        await send_codes(line, name, 1)
        assert (await line.read()).HasField("chunk")
    stream.rpc.cancel()
    released = {await released_by(engine), await released_by(engine)}
    assert released == {SegmentKey("a", 0), SegmentKey("b", 0)}
    assert await served.stage.drain(60)


async def test_stage_that_closes_ends_its_streams(engine: FakeEngine) -> None:
    async with running_stage(LoadedStage(engine, FACTS), "code2wav") as running:
        stream = StandingStream(running)
        line = stream.line()
        await opened(line, "open")
        await running.stage.close()
        assert (await line.read()).error.code == ErrorCode.ERROR_CODE_UNAVAILABLE
        assert await line.read() is grpc.aio.EOF
        assert await stream.rpc.code() is grpc.StatusCode.OK


async def test_client_that_is_done_gets_the_rest(served: RunningStage) -> None:
    stream = StandingStream(served)
    line = stream.line()
    await opened(line, "rest")
    await send_codes(line, "rest", 5, end=True)
    await stream.rpc.done_writing()
    assert await samples_of(line) == [5.0] * 4
    assert await stream.rpc.code() is grpc.StatusCode.OK


async def test_corrupt_message_ends_the_stream(served: RunningStage) -> None:
    raw = served.channel.stream_stream(
        "/antiphon.v1.StageService/RunSessions",
        request_serializer=lambda data: data,
        response_deserializer=lambda data: data,
    )()
    await raw.write(stage_pb2.LineRequest(line=1, request=opening("x")[0]).SerializeToString())
    assert (await raw.read()) is not grpc.aio.EOF
    with pytest.raises(grpc.aio.AioRpcError):
        await raw.read()
    assert await raw.code() is grpc.StatusCode.UNAVAILABLE
    assert served.stage.table.session_count == 0
