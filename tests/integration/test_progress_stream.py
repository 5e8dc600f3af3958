"""A served stage tells of its progress on the session's stream, and is told of that of others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Sequence

import pytest

from antiphon.runtime.engine import EngineEvent, LoadedStage
from antiphon.v1 import session_pb2
from antiphon.values.segment import SegmentKey
from antiphon.wire.chunks import chunk_to_proto
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from tests.integration.stage_session import Request, Session, codes_chunk, opening

pytestmark = pytest.mark.usefixtures("each_carrier")

GENEROUS_S = 120.0


class Slow(FakeEngine):
    """Makes short steps that bring nothing, until `done`."""

    def __init__(self) -> None:
        super().__init__()
        self.done = threading.Event()

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        return super().step(held) if self.done.wait(timeout=0.05) else ()


async def test_a_stage_that_works_for_long_says_so_until_its_output_comes() -> None:
    engine = Slow()
    async with (
        asyncio.timeout(GENEROUS_S),
        running_stage(LoadedStage(engine, FACTS), "code2wav") as running,
    ):
        session = Session(running, "long")
        await session.send(*opening("long"))
        await session.opened()
        await session.send(Request(chunk=chunk_to_proto(codes_chunk("long", 0, [5], end=True))))
        for _ in range(2):
            assert (await session.read("progress")).progress.segment == 0
        engine.done.set()
        while (response := await session.call.read()).WhichOneof("message") == "progress":
            pass
        assert response.WhichOneof("message") == "chunk"


async def test_a_session_that_is_told_of_progress_goes_on(engine: FakeEngine) -> None:
    async with (
        asyncio.timeout(GENEROUS_S),
        running_stage(LoadedStage(engine, FACTS), "code2wav") as running,
    ):
        session = Session(running, "told")
        await session.send(*opening("told"))
        await session.opened()
        await session.send(Request(progress=session_pb2.Progress(segment=0)))
        await session.send(Request(progress=session_pb2.Progress(segment=7)))
        await session.send(Request(chunk=chunk_to_proto(codes_chunk("told", 0, [5], end=True))))
        assert (await session.audio()).segment_finished
