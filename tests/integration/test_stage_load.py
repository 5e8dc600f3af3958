"""`WatchLoad` of a stage on a real gRPC server: what decides where sessions go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from antiphon.runtime.engine import LoadedStage
from antiphon.v1 import stage_pb2
from antiphon.wire.chunks import chunk_to_proto
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.stage_harness import LIMITS, RunningStage
from tests.integration.stage_session import Request, Session, codes_chunk, opening


async def until(
    loads: AsyncIterator[stage_pb2.StageLoad], holds: Callable[[stage_pb2.StageLoad], bool]
) -> stage_pb2.StageLoad:
    """The first load for which it holds."""
    return await anext(load async for load in loads if holds(load))


async def test_the_load_follows_sessions_segments_and_refusals(served: RunningStage) -> None:
    stub = stage_stub(served.channel)
    loads = aiter(stub.WatchLoad(stage_pb2.WatchLoadRequest()))
    described = await stub.Describe(stage_pb2.DescribeRequest())
    assert await anext(loads) == stage_pb2.StageLoad(boot_id=described.boot_id, slots=LIMITS.slots)
    sessions = [Session(served, f"session-{number}") for number in range(LIMITS.slots)]
    for session in sessions:
        await session.send(*opening(session.id))
        await session.opened()
    full = await until(loads, lambda load: load.open_segments == LIMITS.slots)
    assert (full.open_sessions, full.refused, full.draining) == (LIMITS.slots, 0, False)
    refused = Session(served, "refused")
    await refused.send(*opening("refused"))
    await refused.read("opened")
    await refused.error()
    assert (await until(loads, lambda load: load.refused > 0)).refused == 1
    for session in sessions:
        end = codes_chunk(session.id, 0, [1], end=True)
        await session.send(Request(chunk=chunk_to_proto(end)))
        await session.call.done_writing()
    empty = await until(loads, lambda load: load.open_sessions == 0)
    assert (empty.open_segments, empty.refused) == (0, 1)


async def test_the_load_says_when_a_stage_drains_and_ends_when_it_stops() -> None:
    async with running_stage(LoadedStage(FakeEngine(), FACTS), "code2wav") as running:
        loads = aiter(stage_stub(running.channel).WatchLoad(stage_pb2.WatchLoadRequest()))
        assert not (await anext(loads)).draining
        await running.stage.drain(10)
        assert (await until(loads, lambda load: load.draining)).draining
        await running.stage.close()
        assert [load async for load in loads] == []


async def test_sessions_beyond_those_that_may_be_registered_count_as_refused(
    engine: FakeEngine,
) -> None:
    limits = replace(LIMITS, max_sessions=1)
    async with running_stage(LoadedStage(engine, FACTS), "code2wav", limits=limits) as running:
        first, second = Session(running, "first"), Session(running, "second")
        await first.send(*opening("first"))
        await first.opened()
        await second.send(*opening("second"))
        await second.error()
        loads = aiter(stage_stub(running.channel).WatchLoad(stage_pb2.WatchLoadRequest()))
        assert (await anext(loads)).refused == 1
