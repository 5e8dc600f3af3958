"""The engine of code2wav, without a runtime around it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import AntiphonError, DataLoss, InvalidArgument, ResourceExhausted
from antiphon.pipelines.cosyvoice3 import AUDIO, CODES, FIRST, MEL_BINS, SPEAKER_WIDTH, VOICE
from antiphon.runtime.engine import Engine, InputChunk, SegmentSettings
from antiphon.values.chunk import Tensor, Tensors
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.cosyvoice3.code2wav.load import NO_SAMPLING, load
from antiphon_services.cosyvoice3.code2wav.vocoder import noise_of
from antiphon_testkit.drive_engine import SegmentOutput, run_segment, run_segments

SETTINGS = SegmentSettings("", NO_SAMPLING, frozenset({AUDIO}), whole_inputs=frozenset({CODES}))
SLOTS = 4


@pytest.fixture(scope="module")
def engine(checkpoints: dict[str, Path]) -> Engine:
    return load(checkpoints["voices"], StageConfig(slots=SLOTS, context_limit=200)).engine


def voice(codes: int = 7, seed: int = 0) -> Tensors:
    draw = np.random.default_rng(seed)
    return {
        "speaker": draw.standard_normal((1, SPEAKER_WIDTH), np.float32),
        "prompt_codes": draw.integers(FIRST, size=codes, dtype=np.int32),
        "prompt_mel": draw.standard_normal((2 * codes, MEL_BINS), np.float32),
    }


def codes(count: int, seed: int = 1) -> Tensor:
    return np.random.default_rng(seed).integers(FIRST, size=(count, 1), dtype=np.uint16)


def asked(told: Tensors, *parts: Tensor) -> list[InputChunk]:
    chunks = [InputChunk(VOICE, 0, told, True, FinishReason.STOP)]
    position = 0
    for part in parts:
        chunks.append(InputChunk(CODES, position, {CODES: part}))
        position += len(part)
    return [*chunks, InputChunk(CODES, position, {}, True, FinishReason.STOP)]


def audio(output: SegmentOutput) -> Tensor:
    assert output.failed is None, output.failed
    return output.tensors(AUDIO)["samples"]


def alone(engine: Engine, chunks: Sequence[InputChunk]) -> Tensor:
    return audio(run_segment(engine, SETTINGS, chunks))


def test_samples_depend_neither_on_the_chunks_nor_on_company(engine: Engine) -> None:
    made = [codes(count, count) for count in (1, 30, 12)]
    whole = [alone(engine, asked(voice(seed=seed), each)) for seed, each in enumerate(made)]
    assert [len(each) for each in whole] == [960, 28_800, 11_520]
    cut = [asked(voice(seed=seed), *np.array_split(each, 4)) for seed, each in enumerate(made)]
    together = run_segments(
        engine, {SegmentKey(f"{n}", 0): (SETTINGS, chunks) for n, chunks in enumerate(cut)}
    )
    for expected, output in zip(whole, together.values(), strict=True):
        np.testing.assert_array_equal(audio(output), expected)
        np.testing.assert_array_equal(output.tensors(AUDIO)[CODES] < FIRST, True)


def test_each_utterance_is_what_it_is_alone(engine: Engine) -> None:
    first, second = codes(9, 3), codes(14, 4)
    marked = second.copy()
    marked[0] += FIRST
    output = run_segment(engine, SETTINGS, asked(voice(), first, marked))
    expected = [alone(engine, asked(voice(), each)) for each in (first, second)]
    np.testing.assert_array_equal(audio(output), np.concatenate(expected))
    assert [len(each.tensors["samples"]) // 960 for each in output.emitted if each.tensors] == [
        9,
        14,
    ]
    np.testing.assert_array_equal(output.tensors(AUDIO)[CODES], np.concatenate((first, marked)))


def test_first_utterance_leaves_before_the_second_is_complete(engine: Engine) -> None:
    key, marked = SegmentKey("early", 0), codes(4, 5)
    marked[0] += FIRST
    engine.admit(key, SETTINGS)
    for chunk in asked(voice(), codes(6), marked)[:-1]:
        engine.accept(key, chunk)
    events = list(engine.step())
    assert [len(each.tensors["samples"]) for each in events] == [5760]  # type: ignore[union-attr]
    assert engine.awaited_edge(key) == CODES
    engine.release(key)


def test_voice_may_come_after_the_codes_and_may_have_no_recording(engine: Engine) -> None:
    told, *rest = asked(voice(0), codes(5))
    samples = alone(engine, [*rest, told])
    np.testing.assert_array_equal(samples, alone(engine, [told, *rest]))


def test_segment_without_codes_ends_without_samples(engine: Engine) -> None:
    output = run_segment(engine, SETTINGS, asked(voice()))
    assert output.completed is not None
    assert output.finish_reason(AUDIO) is FinishReason.STOP
    assert output.tensors(AUDIO) == {}


BROKEN: list[tuple[InputChunk, type[AntiphonError]]] = [
    (InputChunk(CODES, 1, {CODES: codes(1)}), DataLoss),
    (InputChunk(CODES, 0, {CODES: codes(1).astype(np.int32)}), InvalidArgument),
    (InputChunk(CODES, 0, {CODES: codes(2).reshape(1, 2)}), InvalidArgument),
    (InputChunk(CODES, 0, {CODES: np.full((1, 1), 2 * FIRST, np.uint16)}), InvalidArgument),
    (InputChunk(CODES, 0, {"code": codes(1)}), InvalidArgument),
    (InputChunk(CODES, 0, {CODES: codes(201)}), InvalidArgument),
    (InputChunk(VOICE, 0, voice() | {"prompt_mel": voice(3)["prompt_mel"]}), InvalidArgument),
    (InputChunk(VOICE, 0, voice() | {"prompt_codes": np.full(7, -1, np.int32)}), InvalidArgument),
    (InputChunk(VOICE, 0, voice() | {"prompt_codes": np.full(7, FIRST, np.int32)}),
     InvalidArgument),
    (InputChunk(VOICE, 0, voice() | {"speaker": np.full((1, SPEAKER_WIDTH), np.nan, np.float32)}),
     InvalidArgument),
    (InputChunk(VOICE, 0, {"speaker": voice()["speaker"]}), InvalidArgument),
    (InputChunk("mel", 0, {}), InvalidArgument),
]  # fmt: skip


@pytest.mark.parametrize(("chunk", "error"), BROKEN)
def test_input_that_does_not_fit_is_refused(
    chunk: InputChunk, error: type[AntiphonError], engine: Engine
) -> None:
    key = SegmentKey("broken", 0)
    engine.admit(key, SETTINGS)
    with pytest.raises(error):
        engine.accept(key, chunk)
    engine.release(key)


def test_all_zero_codes_make_sound(engine: Engine) -> None:
    samples = alone(engine, asked(voice(), np.zeros((10, 1), np.uint16)))
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() < 0.99


def test_slots_are_bounded_and_come_back(engine: Engine) -> None:
    keys = [SegmentKey(f"slot {n}", 0) for n in range(SLOTS)]
    for key in keys:
        engine.admit(key, SETTINGS)
    with pytest.raises(ResourceExhausted):
        engine.admit(SegmentKey("one more", 0), SETTINGS)
    for key in keys:
        engine.release(key)
    assert len(alone(engine, asked(voice(), codes(2)))) == 1920


def test_noise_is_that_of_the_frame_wherever_a_piece_begins() -> None:
    whole = noise_of(0, 9, 480, 9)
    np.testing.assert_array_equal(noise_of(4, 9, 480, 9), whole[4 * 480 :])
    np.testing.assert_array_equal(noise_of(3, 5, 7, 9), noise_of(0, 5, 7, 9)[21:])
    assert whole.dtype == np.float32
    assert 0 <= whole.min() < 0.01
    assert 0.99 < whole.max() < 1
