"""Code2wav's engine: pieces, company, ends, and chunks that are no good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import DataLoss, InvalidArgument, ResourceExhausted
from antiphon.pipelines.ming_tts import (
    AUDIO,
    FRAME_SAMPLES,
    FRAME_WIDTH,
    LATENTS,
    SAMPLE_RATE_HZ,
    TAIL_SILENCE,
)
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.ming_tts.code2wav import tail_silence
from antiphon_services.ming_tts.code2wav.engine import LatentDecoderEngine
from antiphon_services.ming_tts.code2wav.load import load
from antiphon_services.ming_tts.code2wav.tail_silence import WINDOW
from antiphon_services.vocoder.stage import NO_SAMPLING
from antiphon_testkit.drive_engine import SegmentOutput, run_segments

SETTINGS = SegmentSettings("", NO_SAMPLING, frozenset({AUDIO}))
TOLERANCE = 2e-6
KEY = SegmentKey("one", 0)

Floats = npt.NDArray[np.float32]


@pytest.fixture(scope="module", params=["windowed", "unbounded"])
def engine(request: pytest.FixtureRequest, checkpoints: dict[str, Path]) -> LatentDecoderEngine:
    stage = load(checkpoints[request.param], StageConfig(slots=3, context_limit=40))
    assert isinstance(stage.engine, LatentDecoderEngine)
    return stage.engine


def frames_of(seed: int, count: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((count, FRAME_WIDTH), np.float32)


def chunks_of(
    frames: Floats, sizes: Sequence[int], *, bare: bool = False, reason: Any = FinishReason.STOP
) -> list[InputChunk]:
    """The frames in chunks; the end comes with the last one, or by itself."""
    chunks, at = [], 0
    for number, size in enumerate(sizes, 1):
        last = number == len(sizes) and not bare
        part = {LATENTS: frames[at : at + size]}
        chunks.append(InputChunk(LATENTS, at, part, last, reason if last else None))
        at += size
    if bare:
        chunks.append(InputChunk(LATENTS, at, {}, True, reason))
    return chunks


def heard(engine: LatentDecoderEngine, *asked: Sequence[InputChunk]) -> list[SegmentOutput]:
    keys = [SegmentKey("asked", index) for index in range(len(asked))]
    outputs = run_segments(
        engine, {key: (SETTINGS, list(each)) for key, each in zip(keys, asked, strict=True)}
    )
    return [outputs[key] for key in keys]


def samples_of(output: SegmentOutput, frames: Floats) -> Floats:
    """The samples of an answer, which must have ended well, with its frames."""
    assert output.failed is None, output.failed
    assert output.completed is not None
    tensors = output.tensors(AUDIO)
    samples: Floats = tensors["samples"]
    np.testing.assert_array_equal(tensors[LATENTS], frames)
    assert len(samples) == FRAME_SAMPLES * len(frames) == output.completed.output_positions
    return samples


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("sizes", [[11], [1] * 11, [2, 1, 5, 3], [10, 1], [1, 10]], ids=str)
def test_any_chunks_give_the_whole(
    engine: LatentDecoderEngine, sizes: list[int], bare: bool
) -> None:
    frames = frames_of(0, 11)
    (whole,) = heard(engine, chunks_of(frames, [11]))
    (pieces,) = heard(engine, chunks_of(frames, sizes, bare=bare))
    np.testing.assert_allclose(
        samples_of(pieces, frames), samples_of(whole, frames), rtol=0, atol=TOLERANCE
    )


def test_company_changes_nothing(engine: LatentDecoderEngine) -> None:
    all_frames = [frames_of(seed, count) for seed, count in ((1, 1), (2, 20), (3, 7))]
    asked = [chunks_of(frames, [len(frames)]) for frames in all_frames]
    for frames, together, alone in zip(all_frames, heard(engine, *asked), asked, strict=True):
        (by_itself,) = heard(engine, alone)
        np.testing.assert_allclose(
            samples_of(together, frames), samples_of(by_itself, frames), rtol=0, atol=TOLERANCE
        )


def test_silence_and_loud_latents_are_heard(engine: LatentDecoderEngine) -> None:
    """A frame of zeros is audio, and large latents stay finite."""
    for frames in (np.zeros((3, FRAME_WIDTH), np.float32), 1e4 * frames_of(4, 3)):
        samples = samples_of(heard(engine, chunks_of(frames, [3]))[0], frames)
        assert np.isfinite(samples).all()


@pytest.mark.parametrize("sizes", [[10], [1] * 10, [4, 6]], ids=str)
def test_silence_at_the_end_is_cut_if_asked_for(
    engine: LatentDecoderEngine, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the loudest window counts as silent here: this model is never silent. Ten frames are
    32 whole windows."""
    frames = frames_of(0, 10)
    whole = samples_of(heard(engine, chunks_of(frames, [10]))[0], frames)
    windows = np.abs(whole.reshape(-1, WINDOW)).mean(1)
    loudest = int(windows.argmax())
    monkeypatch.setattr(tail_silence, "SILENT", 0.999 * windows.max())
    settings = replace(SETTINGS, options={TAIL_SILENCE: 0.05})
    outputs = run_segments(engine, {KEY: (settings, chunks_of(frames, sizes))})
    tensors = outputs[KEY].tensors(AUDIO)
    end = (loudest + 1) * WINDOW + round(0.05 * SAMPLE_RATE_HZ)
    np.testing.assert_allclose(tensors["samples"], whole[:end], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(tensors[LATENTS], frames)
    completed = outputs[KEY].completed
    assert completed is not None
    assert completed.output_positions == min(end, len(whole))


@pytest.mark.parametrize("reason", FinishReason)
def test_an_end_without_frames_is_an_empty_answer(
    engine: LatentDecoderEngine, reason: FinishReason
) -> None:
    (output,) = heard(engine, chunks_of(frames_of(0, 0), [], bare=True, reason=reason))
    assert output.completed is not None
    assert output.completed.output_positions == 0
    assert output.finish_reason(AUDIO) is reason


@pytest.mark.parametrize(
    ("chunk", "error"),
    [
        (InputChunk("codes", 0, {"codes": np.zeros((1, 16), np.uint16)}), InvalidArgument),
        (InputChunk(LATENTS, 0, {"codes": np.zeros((1, 16), np.uint16)}), InvalidArgument),
        (InputChunk(LATENTS, 0, {LATENTS: np.zeros((1, 255), np.float32)}), InvalidArgument),
        (InputChunk(LATENTS, 0, {LATENTS: np.zeros((1, 256), np.float64)}), InvalidArgument),
        (InputChunk(LATENTS, 0, {LATENTS: np.full((1, 256), np.nan, np.float32)}), InvalidArgument),
        (InputChunk(LATENTS, 0, {LATENTS: np.zeros((41, 256), np.float32)}), InvalidArgument),
        (InputChunk(LATENTS, 1, {LATENTS: np.zeros((1, 256), np.float32)}), DataLoss),
        (InputChunk(LATENTS, 0, {LATENTS: np.zeros((1, 256), np.float32)}, True), DataLoss),
    ],
)
def test_chunks_that_are_no_good_are_refused(
    engine: LatentDecoderEngine, chunk: InputChunk, error: type[Exception]
) -> None:
    engine.admit(KEY, SETTINGS)
    try:
        with pytest.raises(error):
            engine.accept(KEY, chunk)
    finally:
        engine.release(KEY)


def test_segments_above_the_slots_are_refused_until_one_is_released(
    engine: LatentDecoderEngine,
) -> None:
    keys = [SegmentKey("many", index) for index in range(4)]
    for key in keys[:3]:
        engine.admit(key, SETTINGS)
    with pytest.raises(ResourceExhausted):
        engine.admit(keys[3], SETTINGS)
    engine.release(keys[0])
    engine.admit(keys[3], SETTINGS)
    for key in keys[1:]:
        engine.release(key)


def test_held_segments_cost_nothing(engine: LatentDecoderEngine) -> None:
    engine.admit(KEY, SETTINGS)
    engine.accept(KEY, chunks_of(frames_of(0, 2), [2])[0])
    assert not engine.step({KEY})
    assert engine.step()
    engine.release(KEY)
