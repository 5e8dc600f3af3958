"""What a served stage lets go of: timers, outboxes, sessions that end as it drains."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace
from typing import Any

import grpc
import pytest
import uvloop

from antiphon.errors import DeadlineExceeded
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.session.facts import (
    ChunkArrived,
    EngineStepped,
    SegmentRequested,
    SegmentStatus,
)
from antiphon.runtime.session.instructions import Destination, End, Progress
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest
from antiphon.runtime.stepping.thread import RESULT_PERMITS
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import SegmentKey
from antiphon.wire.chunks import chunk_to_proto
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.stage_harness import LIMITS, RunningStage
from tests.integration.stage_session import Request, Session, codes_chunk, opening

pytestmark = pytest.mark.usefixtures("each_carrier")

GENEROUS_S = 120.0


class Timers:
    """The timers that a stage has set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.handles: list[asyncio.TimerHandle] = []
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def recorded(when: float, callback: Any, *rest: Any, **more: Any) -> asyncio.TimerHandle:
            handle = call_at(when, callback, *rest, **more)
            if getattr(callback, "__name__", "") == "_tick":
                self.handles.append(handle)
            return handle

        monkeypatch.setattr(loop, "call_at", recorded)

    @property
    def pending(self) -> int:
        """Those that are still to come."""
        now = asyncio.get_running_loop().time()
        return sum(not each.cancelled() and each.when() > now for each in self.handles)


async def test_stage_has_one_timer_and_none_when_it_is_closed(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers = Timers(monkeypatch)
    async with running_stage(LoadedStage(engine, FACTS), "code2wav") as running:
        session = Session(running, "s")
        await session.send(*opening("s"))
        await session.opened()
        for sequence in range(5):
            piece = chunk_to_proto(codes_chunk("s", sequence, [1]))
            await session.send(Request(chunk=piece))
            await session.audio()
            assert timers.pending == 1
        assert len(timers.handles) < 5, "a chunk postpones the clock, which needs no new timer"
        # Held for a session that never opens, it has a clock of its own.
        running.stage.handle(ChunkArrived(codes_chunk("unknown", 0, [1]), "up"))
        assert timers.pending == 1
    assert timers.pending == 0


async def test_answers_of_a_lost_link_are_let_go(served: RunningStage) -> None:
    outbox = served.stage.link_opened("up")
    gone = weakref.ref(outbox)
    served.stage.link_lost("up")
    del outbox
    gc.collect()
    assert gone() is None


async def test_drain_waits_for_what_runs_and_gives_up_in_time(served: RunningStage) -> None:
    session = Session(served, "s")
    await session.send(*opening("s"))
    await session.opened()
    assert not await served.stage.drain(0.01)
    session.call.cancel()
    assert await served.stage.drain(GENEROUS_S)


@pytest.mark.parametrize("live", [False, True])
async def test_a_draining_stage_begins_no_further_segment_and_keeps_the_session(
    served: RunningStage, live: bool
) -> None:
    """A conversation: its turn is finished, the next one has to go elsewhere."""
    session = Session(served, "talk")
    await session.send(*opening("talk"))
    await session.opened()
    draining = asyncio.create_task(served.stage.drain(GENEROUS_S))
    loads = aiter(stage_stub(served.channel).WatchLoad(stage_pb2.WatchLoadRequest()))
    assert await anext(load.draining async for load in loads if load.draining)
    piece = codes_chunk("talk", 0, [1], end=True)
    await session.send(Request(chunk=chunk_to_proto(piece)))
    assert (await session.audio()).segment_finished
    await session.read("report")
    following = session_pb2.SegmentOpen(segment=1, outputs=["audio"], live=live)
    await session.send(Request(segment_open=following))
    refused = (await session.read("segment_refused")).segment_refused
    assert refused.segment == 1
    assert refused.error.code == session_pb2.ErrorCode.ERROR_CODE_UNAVAILABLE
    assert (refused.error.stage, refused.error.retry_after_s > 0) == ("code2wav", True)
    assert "the stage is shutting down" in refused.error.message
    assert not draining.done()
    await session.call.done_writing()
    assert await session.call.read() is grpc.aio.EOF, "it ends without an error"
    assert await draining


def test_deadlines_that_have_passed_are_kept_on_the_loop_of_a_stage_process() -> None:
    """uvloop makes no timer of a moment that has come."""

    async def late_sessions() -> None:
        async with running_stage(LoadedStage(FakeEngine(), FACTS), "code2wav") as running:
            stage = running.stage
            outboxes = []
            for name in ("first", "second"):
                routes = {"audio": (Destination(),)}
                outboxes.append(stage.open(SessionRequest(name, routes)))
                outputs = frozenset({"audio"})
                turn = SegmentRequest(0, SamplingRequest(), "", outputs, {}, deadline_s=1e-9)
                stage.handle(SegmentRequested(name, turn))
            for outbox in outboxes:
                *_, end = [reply async for reply in outbox]
                assert isinstance(end, End)
                assert isinstance(end.error, DeadlineExceeded)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(late_sessions(), 60.0))


async def test_drain_waits_for_all_sessions_when_one_of_them_ends(served: RunningStage) -> None:
    ending, staying = Session(served, "ending"), Session(served, "staying")
    for session in (ending, staying):
        await session.send(*opening(session.id))
        await session.opened()
    # Not this stage's next segment: the session fails.
    await ending.send(Request(segment_open=session_pb2.SegmentOpen(segment=5)))
    await ending.error()
    assert not await served.stage.drain(0.01)
    staying.call.cancel()
    assert await served.stage.drain(GENEROUS_S)


async def test_progress_is_told_once_until_it_is_read(engine: FakeEngine) -> None:
    limits = replace(LIMITS, progress_s=0.0)
    async with running_stage(LoadedStage(engine, FACTS), "code2wav", limits=limits) as running:
        stage, key = running.stage, SegmentKey("s", 0)
        works = EngineStepped([], {key: SegmentStatus(None, 0)}, worked_on=frozenset({key}))
        outbox = stage.open(SessionRequest("s", {"audio": (Destination(),)}))
        wanted = SegmentRequest(0, SamplingRequest(), "", frozenset({"audio"}), {})
        stage.handle(SegmentRequested("s", wanted))
        replies = aiter(outbox)
        for _ in range(2):
            assert not isinstance(await anext(replies), Progress)
        for _ in range(5):
            stage.handle(works)
        assert isinstance(await anext(replies), Progress)
        stage.stream_lost("s")
        assert [type(each) async for each in replies] == [End]


async def test_engine_gets_back_as_many_permits_as_it_took(served: RunningStage) -> None:
    """One more for every batch, and nothing would bound how far it runs ahead."""
    session = Session(served, "s")
    await session.send(*opening("s"))
    await session.opened()
    for sequence in range(5):
        piece = codes_chunk("s", sequence, [1], end=sequence == 4)
        await session.send(Request(chunk=chunk_to_proto(piece)))
        await session.audio()
    await session.read("report")
    engine = served.stage._engine
    await served.stage.close()
    # What was posted before the thread's end has been taken; to stop gives one more.
    assert engine._permits.qsize() == RESULT_PERMITS + 1
