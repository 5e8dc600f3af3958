"""A served stage whose engine hangs in a step, comes back, or comes to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.errors import AntiphonError
from antiphon.runtime.engine import LoadedStage
from antiphon.v1 import session_pb2
from antiphon.values.segment import SegmentKey
from antiphon.wire.chunks import chunk_to_proto
from antiphon_testkit.qwen3_omni.fake_engine import EXPLOSION, FACTS, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.stage_harness import RunningStage
from tests.integration.stage_session import Request, Session, codes_chunk, opening

ErrorCode = session_pb2.ErrorCode
GENEROUS_S = 120.0
Faults = asyncio.Queue[AntiphonError | None]


@asynccontextmanager
async def watched(
    engine: FakeEngine, step_timeout_s: float = 0.2
) -> AsyncIterator[tuple[RunningStage, Faults]]:
    """A stage of this engine, and what it tells of it."""
    faults: Faults = asyncio.Queue()

    def told(fault: AntiphonError | None, passes: bool) -> None:
        faults.put_nowait(fault)

    loaded = LoadedStage(engine, FACTS, is_fatal=lambda error: "poison" in str(error))
    async with (
        asyncio.timeout(GENEROUS_S),
        running_stage(
            loaded,
            "code2wav",
            step_timeout_s=step_timeout_s,
            told=told,
        ) as running,
    ):
        yield running, faults


async def begun(running: RunningStage, name: str, code: int) -> Session:
    """A session that was opened, and has one frame to decode."""
    session = Session(running, name)
    await session.send(*opening(name))
    await session.opened()
    await session.send(Request(chunk=chunk_to_proto(codes_chunk(name, 0, [code]))))
    return session


async def refusal(running: RunningStage, name: str) -> session_pb2.SessionError:
    session = Session(running, name)
    await session.send(*opening(name)[:1])
    return await session.error()


async def test_a_hung_step_ends_sessions_and_serving_until_it_returns(engine: FakeEngine) -> None:
    async with watched(engine) as (running, faults):
        engine.gate.clear()
        session = await begun(running, "hung", 5)
        error = await session.error()
        assert error.code == ErrorCode.ERROR_CODE_UNAVAILABLE
        assert error.stage == "code2wav"
        assert "step_timeout_s" in error.message
        assert await faults.get() is not None
        refused = await refusal(running, "refused")
        assert refused.code == ErrorCode.ERROR_CODE_UNAVAILABLE
        assert refused.retry_after_s
        engine.gate.set()
        assert await faults.get() is None
        assert await asyncio.to_thread(engine.released.get, timeout=GENEROUS_S) == SegmentKey(
            "hung", 0
        )
        again = await begun(running, "again", 6)
        assert (await again.audio()).tensors["samples"][0] == 6
        assert faults.empty()


async def test_an_engine_without_work_is_not_late(engine: FakeEngine) -> None:
    """A session that waits for its input for long, then for a hung step."""
    async with watched(engine) as (running, faults):
        session = Session(running, "slow")
        await session.send(*opening("slow"))
        await session.opened()
        # So long that the watch has looked at the waiting engine.
        await asyncio.sleep(0.5)
        assert faults.empty()
        engine.gate.clear()
        await session.send(Request(chunk=chunk_to_proto(codes_chunk("slow", 0, [5]))))
        assert (await session.error()).code == ErrorCode.ERROR_CODE_UNAVAILABLE


@pytest.mark.parametrize("way", ["release", "poison"])
async def test_an_engine_at_its_end_tells_every_session_and_takes_no_more(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError(f"the device is lost: {way}")

    async with watched(engine) as (running, faults):
        others = [await begun(running, f"other-{number}", 5) for number in range(2)]
        for other in others:
            await other.audio()
        if way == "release":
            monkeypatch.setattr(engine, "release", broken)
            code = EXPLOSION
        else:
            monkeypatch.setattr(engine, "step", broken)
            code = 5
        session = await begun(running, "bad", code)
        for each in (*others, session):
            error = await each.error()
            assert error.code == ErrorCode.ERROR_CODE_UNAVAILABLE
            assert "can't continue" in error.message
        await running.stage.failed.wait()
        assert await faults.get() is not None
        assert (await refusal(running, "late")).code == ErrorCode.ERROR_CODE_UNAVAILABLE
        assert running.stage.table.session_count == 0


async def test_steps_that_raise_in_a_row_keep_sessions_out(engine: FakeEngine) -> None:
    async with watched(engine, step_timeout_s=GENEROUS_S) as (running, faults):
        for name in ("first", "second"):
            bad = await begun(running, name, EXPLOSION)
            assert (await bad.error()).code == ErrorCode.ERROR_CODE_INTERNAL
        fault = await faults.get()
        assert fault is not None
        assert "2 consecutive steps" in fault.message
        refused = await refusal(running, "third")
        assert (refused.code, refused.message) == (
            ErrorCode.ERROR_CODE_UNAVAILABLE,
            fault.message,
        )
        assert refused.retry_after_s
        assert not running.stage.failed.is_set()
