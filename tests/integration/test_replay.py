"""What a running stage decided can be decided again: its facts, replayed, give the same answers."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.session.facts import (
    ChunkArrived,
    Credited,
    EngineStepped,
    LinkLost,
    SessionRequested,
    StreamLost,
    TimePassed,
)
from antiphon.runtime.session.plan import StageLimits, StagePlan
from antiphon.v1 import session_pb2
from antiphon.wire.chunks import chunk_to_proto
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, POISON, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.recording import FactRecording, replay
from tests.integration.stage_session import Request, Session, batch, codes_chunk, linked, opening

LIMITS = StageLimits(slots=4, stall_timeout_s=1.0, hold_timeout_s=1.0, hold_bytes=1 << 20)
GENEROUS_S = 120.0


@pytest.fixture
def plan() -> StagePlan:
    return StagePlan.of(PIPELINE, "code2wav", FACTS.default_sampling, LIMITS)


async def record_a_run(recording: FactRecording) -> None:
    """Sessions that end well, fail, are refused, stall, wait for credit and are left alone."""
    async with (
        asyncio.timeout(GENEROUS_S),
        running_stage(
            LoadedStage(FakeEngine(), FACTS), "code2wav", limits=LIMITS, record=recording.note
        ) as running,
    ):
        speaking = Session(running, "speaking")
        await speaking.send(*opening("speaking"))
        await speaking.opened()
        for number in range(3):
            chunk = codes_chunk("speaking", number, [number, 7], end=number == 2)
            await speaking.send(Request(chunk=chunk_to_proto(chunk)))
        while not (await speaking.audio()).segment_finished:
            pass
        refused = Session(running, "speaking")
        await refused.send(*opening("speaking"))
        assert "already opened" in (await refused.error()).message
        poisoned = Session(running, "poisoned")
        await poisoned.send(*opening("poisoned"))
        await poisoned.opened()
        poison = codes_chunk("poisoned", 0, [POISON])
        await poisoned.send(Request(chunk=chunk_to_proto(poison)))
        assert "poisoned" in (await poisoned.error()).message
        paused = Session(running, "paused")
        await paused.send(*opening("paused", windows={"audio": 4}))
        await paused.opened()
        await paused.send(
            Request(chunk=chunk_to_proto(codes_chunk("paused", 0, [1, 2, 3], end=True)))
        )
        credit = session_pb2.OutputCredit(edge="audio", segment=0, positions=100)
        await paused.send(Request(credit=credit))
        while not (await paused.audio()).segment_finished:
            pass
        async with linked(running) as link:
            left = Session(running, "left")
            await link.write(
                batch(codes_chunk("left", 0, [5]), codes_chunk("never-opened", 0, [5]))
            )
            await left.send(*opening("left"))
            await left.opened()
            await left.audio()
        assert (await left.error()).stage
        stalled = Session(running, "stalled")
        await stalled.send(*opening("stalled"))
        await stalled.opened()
        assert (await stalled.error()).edge == "codes"


async def test_replayed_facts_give_the_same_instructions(plan: StagePlan) -> None:
    recording = FactRecording()
    await record_a_run(recording)
    kinds = Counter(type(entry.fact) for entry in recording.entries)
    for kind in (
        SessionRequested, ChunkArrived, Credited, EngineStepped, LinkLost, StreamLost, TimePassed,
    ):  # fmt: skip
        assert kinds[kind], kind
    assert replay(plan, recording.entries) == [entry.answer for entry in recording.entries]


async def test_replay_differs_where_another_fact_or_another_bound_was(plan: StagePlan) -> None:
    recording = FactRecording()
    await record_a_run(recording)
    answers = [entry.answer for entry in recording.entries]
    first = next(i for i, e in enumerate(recording.entries) if isinstance(e.fact, ChunkArrived))
    without = recording.entries[:first] + recording.entries[first + 1 :]
    assert replay(plan, without) != answers[:first] + answers[first + 1 :]
