"""Code2wav makes the vendor's samples of codes, alone and in company, and ends whatever comes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import DataLoss, FailedPrecondition, InvalidArgument, ResourceExhausted
from antiphon.pipelines.covo_audio import AUDIO, CODE_ENTRIES, CODES, LICENCE
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.covo_audio.code2wav import answer_vocoder
from antiphon_services.covo_audio.code2wav.engine import AnswerEngine
from antiphon_services.covo_audio.code2wav.load import load, load_decoder
from antiphon_services.covo_audio.code2wav.voice_files import VOICE_FILES
from antiphon_services.flow.work import run_to_end
from antiphon_services.vocoder.stage import NO_SAMPLING
from antiphon_testkit.covo_audio.tiny_checkpoint import PRESETS, VOICE_FOLDER
from antiphon_testkit.drive_engine import SegmentOutput, run_segments
from antiphon_testkit.flat_settings import stage_config
from tests.equality.covo_audio.covo_cases import AUDIO_STEP, CODES_CASES, codes_of, key_of
from tests.equality.covo_audio.covo_truth import CovoTruth

TOLERANCE = 1e-4
ROUNDING = 1e-5
"""Between convolutions of different lengths."""
LATENT_SAMPLES = 240
KEY = SegmentKey("one", 0)

Codes = npt.NDArray[np.uint16]


@pytest.fixture(scope="module")
def engines(covo_checkpoints: dict[str, Path]) -> dict[str, AnswerEngine]:
    """By preset. Every test releases its segments."""
    made = {}
    for name, path in covo_checkpoints.items():
        stage = load(path, StageConfig(slots=8, context_limit=200))
        assert isinstance(stage.engine, AnswerEngine)
        assert stage.facts.samples_per_frame == 960
        assert stage.facts.code_entries == CODE_ENTRIES
        made[name] = stage.engine
    return made


@pytest.fixture
def engine(preset: str, engines: dict[str, AnswerEngine]) -> AnswerEngine:
    return engines[preset]


def settings_of(seed: int, outputs: Sequence[str] = (AUDIO,)) -> SegmentSettings:
    return SegmentSettings("", replace(NO_SAMPLING, seed=seed), frozenset(outputs))


def chunks_of(codes: Codes, sizes: Sequence[int]) -> list[InputChunk]:
    """The codes in chunks of these sizes, and then the end by itself."""
    chunks, at = [], 0
    for size in sizes:
        chunks.append(InputChunk(CODES, at, {CODES: codes[at : at + size, None]}))
        at += size
    assert at == len(codes)
    return [*chunks, InputChunk(CODES, at, {}, True, FinishReason.STOP)]


def samples_of(output: SegmentOutput, codes: Codes) -> npt.NDArray[np.float32]:
    assert output.failed is None, output.failed
    assert output.completed is not None
    assert output.finish_reason(AUDIO) is FinishReason.STOP
    tensors = output.tensors(AUDIO)
    np.testing.assert_array_equal(tensors[CODES][:, 0], codes)
    samples: npt.NDArray[np.float32] = tensors["samples"]
    assert len(samples) == output.completed.output_positions
    return samples


@pytest.mark.parametrize("parts", [1, 3], ids=["whole", "parts"])
def test_audio_is_that_of_the_vendor(
    parts: int, preset: str, engine: AnswerEngine, covo_truth: CovoTruth
) -> None:
    """All cases at once, more than one in a step. The voice's latents beyond its codes take the
    place of the first latents of an answer, as in the vendor's code."""
    asked = {}
    for name, count in CODES_CASES.items():
        sizes = [each for each in (count // parts,) * (parts - 1) if each]
        chunks = chunks_of(codes_of(name), [*sizes, count - sum(sizes)])
        asked[SegmentKey(name, 0)] = (settings_of(key_of(name)), chunks)
    missing = LATENT_SAMPLES * PRESETS[preset].surplus_latents
    for key, output in run_segments(engine, asked).items():
        name = key.session_id
        samples = samples_of(output, codes_of(name))
        assert len(samples) == 960 * CODES_CASES[name] - missing
        wanted = covo_truth.arrays[f"{preset}/codes-{name}/audio"]
        np.testing.assert_allclose(samples[::AUDIO_STEP], wanted, rtol=0, atol=TOLERANCE)


def test_company_of_eight_changes_nothing(engine: AnswerEngine) -> None:
    asked, alone = {}, {}
    for number in range(8):
        codes = np.random.default_rng(number).integers(CODE_ENTRIES, size=3 + 5 * number)
        codes = codes.astype(np.uint16)
        key = SegmentKey(f"asked-{number}", 0)
        asked[key] = (settings_of(number), chunks_of(codes, [len(codes)]))
        alone[key] = samples_of(run_segments(engine, {key: asked[key]})[key], codes)
    for key, output in run_segments(engine, asked).items():
        np.testing.assert_array_equal(output.tensors(AUDIO)["samples"], alone[key])


def test_noise_depends_on_the_seed(engine: AnswerEngine) -> None:
    codes = codes_of("few")
    first, again, other = (
        samples_of(
            run_segments(engine, {KEY: (settings_of(seed), chunks_of(codes, [9]))})[KEY], codes
        )
        for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01


def test_an_answer_of_equal_codes_is_finite(engine: AnswerEngine) -> None:
    codes = np.zeros(30, np.uint16)
    output = run_segments(engine, {KEY: (settings_of(1), chunks_of(codes, [30]))})[KEY]
    assert np.isfinite(samples_of(output, codes)).all()


@pytest.mark.parametrize("outputs", [(AUDIO,), ()])
@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_an_end_without_codes_is_an_empty_answer(
    engine: AnswerEngine, reason: FinishReason, outputs: Sequence[str]
) -> None:
    end = [InputChunk(CODES, 0, {}, True, reason)]
    output = run_segments(engine, {KEY: (settings_of(1, outputs), end)})[KEY]
    assert output.completed is not None
    assert output.completed.output_positions == 0
    assert output.finish_reason(AUDIO) is (reason if outputs else None)


@pytest.mark.parametrize(
    ("chunk", "error"),
    [
        (InputChunk("text", 0, {CODES: np.zeros((1, 1), np.uint16)}), InvalidArgument),
        (InputChunk(CODES, 0, {CODES: np.full((1, 1), CODE_ENTRIES, np.uint16)}), InvalidArgument),
        (InputChunk(CODES, 0, {CODES: np.zeros((1, 1), np.int32)}), InvalidArgument),
        (InputChunk(CODES, 0, {CODES: np.zeros((1, 2), np.uint16)}), InvalidArgument),
        (InputChunk(CODES, 0, {CODES: np.zeros((201, 1), np.uint16)}), InvalidArgument),
        (InputChunk(CODES, 1, {CODES: np.zeros((1, 1), np.uint16)}), DataLoss),
        (InputChunk(CODES, 0, {CODES: np.zeros((1, 1), np.uint16)}, True), DataLoss),
    ],
)
def test_chunks_that_are_no_good_are_refused(
    engine: AnswerEngine, chunk: InputChunk, error: type[Exception]
) -> None:
    engine.admit(KEY, settings_of(0))
    with pytest.raises(error):
        engine.accept(KEY, chunk)
    engine.release(KEY)


def test_slots_return_after_a_cancelled_answer(engine: AnswerEngine) -> None:
    keys = [SegmentKey(f"many-{index}", 0) for index in range(9)]
    for key in keys[:8]:
        engine.admit(key, settings_of(0))
        for chunk in chunks_of(codes_of("piece"), [64]):
            engine.accept(key, chunk)
    engine.step()
    with pytest.raises(ResourceExhausted):
        engine.admit(keys[8], settings_of(0))
    assert not engine.step(set(keys))
    for key in keys[:8]:
        engine.release(key)
    codes = codes_of("few")
    output = run_segments(engine, {keys[8]: (settings_of(1), chunks_of(codes, [9]))})[keys[8]]
    samples_of(output, codes)


def test_pieces_of_the_vocoder_are_the_whole(
    covo_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocoder = load_decoder(covo_checkpoint, StageConfig()).vocoder
    width = np.load(covo_checkpoint / VOICE_FOLDER / "prompt_latent.npy").shape[-1]
    latents = torch.randn(700, width, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        pieces = run_to_end(vocoder.samples(latents))
        monkeypatch.setattr(answer_vocoder, "PIECE", 1000)
        whole = run_to_end(vocoder.samples(latents))
    assert len(whole) == LATENT_SAMPLES * 700
    torch.testing.assert_close(pieces, whole, rtol=0, atol=ROUNDING)


def test_a_missing_voice_is_named_with_its_directory(
    covo_checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "voice"
    with pytest.raises(FailedPrecondition) as missing:
        load(covo_checkpoint, stage_config(voice_dir=str(folder)))
    assert str(folder) in missing.value.message
    assert all(name in missing.value.message for name in VOICE_FILES)
    shutil.copytree(covo_checkpoint / VOICE_FOLDER, folder)
    load(covo_checkpoint, stage_config(voice_dir=str(folder)))
    assert LICENCE in caplog.text
    (folder / VOICE_FILES[1]).unlink()
    with pytest.raises(FailedPrecondition, match=f"does not contain {VOICE_FILES[1]};"):
        load(covo_checkpoint, stage_config(voice_dir=str(folder)))
    np.save(folder / VOICE_FILES[1], np.zeros((1, 8, 7), np.float32))
    with pytest.raises(FailedPrecondition, match="last axis"):
        load(covo_checkpoint, stage_config(voice_dir=str(folder)))


@pytest.mark.parametrize("stored", [torch.float16, torch.float32])
def test_a_decoder_of_another_shape_is_refused(
    covo_checkpoints: dict[str, Path], tmp_path: Path, stored: torch.dtype
) -> None:
    shutil.copytree(covo_checkpoints["wrapped"], tmp_path / "model")
    path = tmp_path / "model/token2wav/model.pt"
    tensors = torch.load(path, weights_only=True)
    name = "module.token2latent.token_embedding.weight"
    tensors[name] = tensors[name][:-1].to(stored)
    torch.save(tensors, path)
    with pytest.raises(FailedPrecondition, match="16383 codes"):
        load(tmp_path / "model", StageConfig())
    del tensors["module.token2latent.cond_proj.bias"]
    torch.save(tensors, path)
    with pytest.raises(FailedPrecondition, match="cond_proj"):
        load(tmp_path / "model", StageConfig())
