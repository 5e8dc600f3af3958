"""The load drivers on stages of a family that they have never heard of: audio only, two stages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.examples import conversation, random_codes
from antiphon.pipelines.graph import CLIENT, VARIES, Edge, Pipeline, StageSpec, TensorSpec
from antiphon.runtime.engine import (
    Completed,
    Emitted,
    Engine,
    EngineEvent,
    InputChunk,
    LoadedStage,
    SegmentSettings,
)
from antiphon.values.segment import Delivery, FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, GROUPS, SAMPLES_PER_FRAME, FakeEngine
from antiphon_testkit.stage_harness import running_stage
from antiphon_tools.load.content import Content
from antiphon_tools.load.run import Load, LoadRun, run_load
from antiphon_tools.load.stage_driver import StageDriver, describe_stage
from antiphon_tools.load.upstream import Pace, made_up

COMPOSER, PLAYER = "composer", "player"
RATE_HZ = FACTS.sample_rate_hz / SAMPLES_PER_FRAME
FRAMES = 6
BAND = Pipeline(
    name="band",
    architectures=("BandForConditionalGeneration",),
    stages=(
        StageSpec(COMPOSER, samples=True, reads_aloud=True, example=conversation("score")),
        StageSpec(PLAYER, example=random_codes("codes")),
    ),
    edges=(
        Edge(
            "score",
            CLIENT,
            (COMPOSER,),
            "message",
            (TensorSpec("messages", "uint8", (VARIES,)),),
            counted_by="messages",
        ),
        Edge(
            "codes",
            COMPOSER,
            (PLAYER,),
            "codec frame",
            (TensorSpec("codes", "uint16", (VARIES, GROUPS)),),
            counted_by="codes",
            grouped=True,
            governed=True,
            rate_hz=RATE_HZ,
        ),
        Edge(
            "audio",
            PLAYER,
            (CLIENT,),
            "sample",
            (
                TensorSpec("samples", "float32", (VARIES,)),
                TensorSpec("codes", "uint16", (VARIES, GROUPS)),
            ),
            counted_by="samples",
            governed=True,
        ),
    ),
)


class Composer:
    """Makes as many frames as its sampling allows, in one step, once it has a message."""

    def __init__(self) -> None:
        self._frames: dict[SegmentKey, int] = {}
        self._ready: set[SegmentKey] = set()

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        self._frames[key] = settings.sampling.max_tokens - 1

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        self._ready.add(key)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        return None if key in self._ready else "score"

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        events: list[EngineEvent] = []
        for key in sorted(self._ready.difference(held)):
            self._ready.discard(key)
            frames = self._frames[key]
            codes = {"codes": np.zeros((frames, GROUPS), np.uint16)}
            events.append(Emitted(key, "codes", 0, codes, FinishReason.LENGTH))
            events.append(Completed(key, FinishReason.LENGTH, 1, frames))
        return events

    def release(self, key: SegmentKey) -> None:
        del self._frames[key]
        self._ready.discard(key)


async def loaded(
    engine: Engine,
    role: str,
    pipeline: Pipeline = BAND,
    delivery: Delivery | None = None,
) -> LoadRun:
    """Load one stage, flat out."""
    content, pace = Content(frames=FRAMES, delivery=delivery), Pace(real_time=False)
    async with running_stage(LoadedStage(engine, FACTS), role, pipeline=pipeline) as stage:
        described = await describe_stage(stage.address)
        feed_of = made_up(content, pipeline, described, pace)
        driver = StageDriver(
            stage.address, pipeline, described, content, feed_of, paced=False, timeout_s=60
        )
        assert driver.outputs == {"audio"}
        async with aclosing(driver):
            run = await run_load(Load(rate=None, sessions=2, seconds=0.2), driver)
    assert run.requests
    assert {each.error for each in run.requests} == {""}, run.messages
    assert {each.ttft for each in run.requests} == {None}
    for each in run.requests:
        assert each.audio_s == pytest.approx(FRAMES / RATE_HZ)
    return run


async def test_stage_that_reads_the_client_and_makes_frames_is_loaded() -> None:
    run = await loaded(Composer(), COMPOSER)
    assert {each.edges["score"].messages for each in run.requests} == {1}


@pytest.mark.parametrize("look_ahead", [0, 3])
async def test_stage_that_is_fed_frames_gets_as_many_as_the_pipeline_groups(
    look_ahead: int,
) -> None:
    edges = (replace(e, look_ahead=look_ahead if e.grouped else 0) for e in BAND.edges)
    run = await loaded(FakeEngine(), PLAYER, replace(BAND, edges=tuple(edges)))
    sizes = (BAND.chunk_policy.first + look_ahead, *BAND.chunk_policy.ramp)
    chunks = next(n for n in range(len(sizes) + 1) if sum(sizes[:n]) >= FRAMES)
    assert {each.edges["codes"].messages for each in run.requests} == {chunks}


async def test_output_comes_in_one_piece_where_whole_delivery_is_asked_for() -> None:
    run = await loaded(FakeEngine(), PLAYER, delivery=Delivery.WHOLE)
    assert {each.edges["audio"].messages for each in run.requests} == {1}


async def test_stage_without_an_example_takes_a_recording() -> None:
    bare = replace(BAND, stages=tuple(replace(each, example=None) for each in BAND.stages))
    with pytest.raises(FailedPrecondition, match=r"an example input for player.*--replay"):
        await loaded(FakeEngine(), PLAYER, bare)
