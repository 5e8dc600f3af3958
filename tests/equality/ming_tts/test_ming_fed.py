"""A stage of another family writes the text that Ming's talker speaks, sentence by sentence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.edges import audio_edge, conversation_edge, frames_edge
from antiphon.pipelines.graph import CLIENT, Edge, Pipeline, StageSpec
from antiphon.pipelines.ming_tts import (
    CODE2WAV,
    FRAME_RATE_HZ,
    FRAME_SAMPLES,
    FRAME_WIDTH,
    LATENTS,
    PIPELINE,
    TALKER,
)
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, LoadedStage
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.ming_tts.code2wav.load import load as load_code2wav
from antiphon_services.ming_tts.talker.load import load as load_talker
from tests.equality.read_aloud import listen
from tests.integration.families import IDS, UTF8, asked, prompt, repeats, served
from tests.integration.scripted_engine import Chunks, Script, facts, loaded
from tests.unit.services.ming_tts.ming_talker_lab import Asked, TalkerLab, latents_of
from tests.unit.services.ming_tts.test_ming_utterances import SHORT, by_size, say

pytestmark = [pytest.mark.equality, pytest.mark.asyncio(loop_scope="session")]

WRITER, TEXT = "writer", "text"
HEARD_S = 240.0
SEED = 3
FED = Pipeline(
    name="fed",
    architectures=(),
    stages=(
        StageSpec(WRITER, samples=True),
        StageSpec(TALKER, samples=True, options=PIPELINE.stage(TALKER).options),
        StageSpec(CODE2WAV, dtype="float32"),
    ),
    edges=(
        conversation_edge(WRITER),
        Edge(TEXT, WRITER, (CLIENT, TALKER), "token", (IDS, UTF8), "ids", pace_s=0.01),
        frames_edge(
            LATENTS, TALKER, CODE2WAV, rate_hz=FRAME_RATE_HZ, groups=FRAME_WIDTH, dtype="float32"
        ),
        audio_edge(CODE2WAV, LATENTS, "float32"),
    ),
    chunk_policy=PIPELINE.chunk_policy,
)


def writer(script: Script, talker: LoadedStage) -> LoadedStage:
    """A stage of the talker's checkpoint that plays a script."""
    own = facts(talker.facts.model)
    same = replace(own, checkpoint_fingerprint=talker.facts.checkpoint_fingerprint)
    return loaded(script, same)


@pytest.fixture(scope="module")
def fed(ming_checkpoints: dict[str, Path]) -> dict[str, LoadedStage]:
    """A writer that repeats what the user says, and Ming's stages."""
    folder = ming_checkpoints["flash"]
    talker = load_talker(folder, StageConfig(slots=2, context_limit=512), text_edge=TEXT)
    return {
        WRITER: writer(repeats, talker),
        TALKER: talker,
        CODE2WAV: load_code2wav(folder, StageConfig(slots=2)),
    }


async def test_what_a_stage_writes_is_spoken_as_the_same_text_in_pieces(
    fed: dict[str, LoadedStage], ming_checkpoints: dict[str, Path]
) -> None:
    lab = TalkerLab(ming_checkpoints["flash"])
    expected = latents_of(say(lab, (Asked(SHORT, seed=SEED), by_size(SHORT, 10)))[0])
    async with served(FED, fed) as family:
        generation = family.client.generate(SHORT, seed=SEED, include_ids=True)
        speech = await listen(generation, FRAME_WIDTH)
    np.testing.assert_allclose(speech.codes, expected, rtol=0, atol=1e-4)
    assert len(speech.samples) == FRAME_SAMPLES * len(expected)


async def test_an_answer_without_words_has_no_audio(fed: dict[str, LoadedStage]) -> None:
    async with served(FED, fed) as family:
        answer = await family.client.generate("...", seed=SEED).collect()
    assert answer.text == "..."
    assert answer.pcm16 == b""
    assert answer.finish_reason is FinishReason.STOP


async def test_the_first_sentence_is_heard_before_the_text_ends(
    fed: dict[str, LoadedStage],
) -> None:
    heard = threading.Event()

    def pauses(key: SegmentKey, chunks: Chunks) -> Iterator[EngineEvent | None]:
        """Writes the first sentence, and the rest once it was heard."""
        yield from asked(chunks)
        text = prompt(chunks)
        first = text.index(".") + 2
        for start, part in ((0, text[:first]), (first, text[first:])):
            if start:
                assert heard.wait(HEARD_S)
            utf8 = np.frombuffer(part.encode(), np.uint8)
            ids = np.array([ord(each) for each in part], np.int32)
            yield Emitted(key, TEXT, start, {"ids": ids, "utf8": utf8})
        yield Emitted(key, TEXT, len(text), finish_reason=FinishReason.STOP)
        yield Completed(key, FinishReason.STOP, 7, len(text))

    async def at_first() -> None:
        heard.set()

    stages = fed | {WRITER: writer(pauses, fed[TALKER])}
    async with served(FED, stages) as family:
        generation = family.client.generate(SHORT, seed=SEED, include_ids=True)
        speech = await listen(generation, FRAME_WIDTH, at_first)
    assert heard.is_set()
    assert speech.finished.finish_reason is not None
    assert len(speech.samples) == FRAME_SAMPLES * len(speech.codes) > 0
