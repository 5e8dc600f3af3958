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
from antiphon.errors import DataLoss, Internal, InvalidArgument, ResourceExhausted
from antiphon.pipelines.ming_tts import (
    AUDIO,
    FRAME_SAMPLES,
    FRAME_WIDTH,
    LATENTS,
    SAMPLE_RATE_HZ,
    STEP_LATENTS,
    TAIL_SILENCE,
)
from antiphon.runtime.engine import Emitted, InputChunk, SegmentSettings
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.ming_tts.code2wav import tail_silence
from antiphon_services.ming_tts.code2wav.decoder import AudioDecoder, LatentPiece
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


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Latents of each piece, by call of the decoder."""
    made: list[list[int]] = []
    advance = AudioDecoder.advance

    def counted(self: AudioDecoder, pieces: Sequence[LatentPiece]) -> Any:
        made.append([len(piece.latents) for piece in pieces])
        return advance(self, pieces)

    monkeypatch.setattr(AudioDecoder, "advance", counted)
    return made


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


@pytest.mark.parametrize("preset", ["windowed", "unbounded"])
def test_sessions_of_a_step_share_a_call(
    preset: str, checkpoints: dict[str, Path], calls: list[list[int]]
) -> None:
    engine = load(checkpoints[preset], StageConfig(slots=8, context_limit=40)).engine
    assert isinstance(engine, LatentDecoderEngine)
    all_frames = [frames_of(seed, 6) for seed in range(8)]
    asked = [chunks_of(frames, [1, 2, 3], bare=bool(n % 2)) for n, frames in enumerate(all_frames)]
    calls.clear()
    together = heard(engine, *asked)
    # The bare ends come once the frames are worked off.
    assert calls[:6] == [[STEP_LATENTS] * 8] * 6
    assert [sum(each) for each in calls[6:]] == [0]
    for frames, output, alone in zip(all_frames, together, asked, strict=True):
        (by_itself,) = heard(engine, alone)
        np.testing.assert_allclose(
            samples_of(output, frames), samples_of(by_itself, frames), rtol=0, atol=TOLERANCE
        )


def test_a_fault_fails_its_segment_and_no_other(
    engine: LatentDecoderEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faulty frame shares a call with others, whose state the failed call leaves alone."""
    all_frames = [frames_of(seed, 4) for seed in range(3)]
    all_frames[1][2, 0] = marked = 77.0
    asked = [chunks_of(frames, [1] * 4) for frames in all_frames]
    alone = [heard(engine, each)[0] for each in asked]
    advance = AudioDecoder.advance

    def faulty(self: AudioDecoder, pieces: Sequence[LatentPiece]) -> Any:
        made = advance(self, pieces)
        if any(bool((piece.latents == marked).any()) for piece in pieces):
            raise RuntimeError("planted")
        return made

    monkeypatch.setattr(AudioDecoder, "advance", faulty)
    outputs = heard(engine, *asked)
    assert outputs[1].failed is not None
    assert isinstance(outputs[1].failed.error, Internal)
    np.testing.assert_array_equal(outputs[1].tensors(AUDIO)[LATENTS], all_frames[1][:2])
    for index in (0, 2):
        np.testing.assert_allclose(
            samples_of(outputs[index], all_frames[index]),
            samples_of(alone[index], all_frames[index]),
            rtol=0,
            atol=TOLERANCE,
        )


def test_more_segments_than_frames_of_a_step_take_turns(checkpoints: dict[str, Path]) -> None:
    """Eleven segments share eight frames a step; none is left out and none is forgotten."""
    engine = load(checkpoints["windowed"], StageConfig(slots=11, context_limit=40)).engine
    assert isinstance(engine, LatentDecoderEngine)
    keys = [SegmentKey("turns", index) for index in range(11)]
    for key in keys:
        engine.admit(key, SETTINGS)
        engine.accept(key, chunks_of(frames_of(key.segment, 3), [3])[0])
    stepped = []
    for _ in range(5):
        events = engine.step()
        stepped.append([each.key.segment for each in events if isinstance(each, Emitted)])
    assert [len(each) for each in stepped] == [8, 8, 8, 8, 1]
    assert stepped[1][:3] == [8, 9, 10]
    assert sorted(index for each in stepped for index in each) == sorted([*range(11)] * 3)
    assert not engine.step()
    for key in keys:
        engine.release(key)


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
