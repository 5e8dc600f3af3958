"""A consumer that must see positions beyond what it makes: over real links, without models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import LoadedStage
from antiphon.v1 import session_pb2
from antiphon.values.chunk import Chunk
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, SAMPLES_PER_FRAME, FakeEngine
from antiphon_testkit.qwen3_omni.fake_talker import FakeTalker
from antiphon_testkit.stage_harness import RunningStage, running_stage
from tests.integration.stage_session import Request, Session, batch, codes_chunk, linked, opening

LOOK_AHEAD = 3
FRAMES = 100
CODES = replace(PIPELINE.edge("codes"), look_ahead=LOOK_AHEAD)
FAMILY = replace(
    PIPELINE,
    edges=tuple(CODES if edge.name == CODES.name else edge for edge in PIPELINE.edges),
)
POLICY = session_pb2.ChunkPolicy(first=1, ramp=[2, 4], steady=5)


@pytest.fixture
async def code2wav() -> AsyncIterator[RunningStage]:
    loaded = LoadedStage(FakeEngine(LOOK_AHEAD), FACTS)
    async with running_stage(loaded, "code2wav", pipeline=FAMILY) as running:
        yield running


def spoken(chunk: Chunk) -> list[int]:
    """The frames of an audio chunk."""
    frames = chunk.tensors["codes"][:, 0]
    samples = np.repeat(frames.astype(np.float32), SAMPLES_PER_FRAME)
    np.testing.assert_array_equal(chunk.tensors["samples"], samples)
    return frames.tolist()


async def test_consumer_holds_output_back_until_its_look_ahead_or_the_end_has_come(
    code2wav: RunningStage,
) -> None:
    session = Session(code2wav, "ahead")
    await session.send(*opening("ahead"))
    await session.opened()
    async with linked(code2wav) as link:
        await link.write(batch(codes_chunk("ahead", 0, [1, 2, 3])))
        await link.write(batch(structs.replace(codes_chunk("ahead", 1, [4]), position=3)))
        assert spoken(await session.audio()) == [1]
        await link.write(batch(structs.replace(codes_chunk("ahead", 2, [5, 6]), position=4)))
        assert spoken(await session.audio()) == [2, 3]
        await link.write(batch(structs.replace(codes_chunk("ahead", 3, [], end=True), position=6)))
        last = await session.audio()
        assert (spoken(last), last.segment_finished) == ([4, 5, 6], True)


@pytest.mark.parametrize("window", [1, LOOK_AHEAD, 64])
@pytest.mark.parametrize("delivery", [{}, {"codes": session_pb2.DELIVERY_WHOLE}])
async def test_audio_comes_in_whole_groups_whatever_the_window(
    code2wav: RunningStage, window: int, delivery: dict[str, int]
) -> None:
    talking = LoadedStage(FakeTalker(FRAMES), FACTS)
    async with running_stage(talking, "talker", pipeline=FAMILY) as talker:
        reply = session_pb2.Destination(reply=session_pb2.ReplyTarget())
        to_stage = session_pb2.Destination(stage=session_pb2.StageTarget(address=code2wav.address))
        turn = session_pb2.SegmentOpen(
            outputs=["audio"], chunk_policy=POLICY, delivery=delivery, last=True
        )
        audio, speech = Session(code2wav, "groups"), Session(talker, "groups")
        for session, edge, target in ((audio, "audio", reply), (speech, "codes", to_stage)):
            route = session_pb2.Route(edge=edge, destinations=[target])
            request = session_pb2.SessionOpen(
                session_id="groups", routes=[route], windows={"codes": window}
            )
            await session.send(Request(open=request), Request(segment_open=turn))
            await session.opened()
        heard: list[int] = []
        ends = {1, 3, 7, *range(12, FRAMES + 1, 5), FRAMES} if not delivery else {FRAMES}
        finished = False
        while not finished:
            chunk = await audio.audio()
            heard += spoken(chunk) if chunk.tensors else []
            assert len(heard) in ends
            finished = chunk.segment_finished
        assert heard == list(range(1, FRAMES + 1))
        await speech.read("report")
