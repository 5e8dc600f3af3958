"""code2wav as a stage process loads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.qwen3_tts import CODE2WAV, CODEC_FOLDER, PIPELINE
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.chunk import Tensors
from antiphon.values.segment import FinishReason
from antiphon_services.stage.loading import load_stage
from antiphon_testkit.drive_engine import run_segment
from antiphon_testkit.qwen3_tts.tiny_checkpoint import PRESETS

AUDIO_STEP = 13


@pytest.mark.parametrize("case", ["voice-3-whole", "codes-4-trailing"])
def test_recorded_frames_sound_as_recorded(
    case: str, checkpoints: dict[str, Path], recorded: Tensors
) -> None:
    kind = "base" if case.startswith("codes") else "custom_voice"
    stage = load_stage(PIPELINE, CODE2WAV, checkpoints[kind], StageConfig())
    codes = recorded[f"{case}/codes"]
    primes = [InputChunk("codes", 0, {"codes": recorded["reference/codes"]}, prime=True)]
    chunks = [
        InputChunk("codes", 0, {"codes": codes[:2]}),
        InputChunk("codes", 2, {"codes": codes[2:]}, True, FinishReason.STOP),
    ]
    settings = SegmentSettings("", stage.facts.default_sampling, frozenset({"audio"}))
    made = run_segment(stage.engine, settings, primes * (kind == "base") + chunks)
    tensors = made.tensors("audio")
    assert len(tensors["samples"]) == 1920 * len(codes)
    heard = tensors["samples"][::AUDIO_STEP]
    np.testing.assert_allclose(heard, recorded[f"{case}/audio"], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(tensors["codes"], codes)


@pytest.mark.parametrize("kind", PRESETS)
def test_facts_are_those_of_the_codec(kind: str, checkpoints: dict[str, Path]) -> None:
    facts = load_stage(PIPELINE, CODE2WAV, checkpoints[kind], StageConfig()).facts
    assert facts.model == kind
    assert facts.checkpoint_fingerprint == fingerprint(checkpoints[kind])
    assert (facts.sample_rate_hz, facts.samples_per_frame) == (24_000, 1920)
    shape = PRESETS[kind]
    assert (facts.code_groups, facts.code_entries) == (shape.code_groups, shape.codebook_size)
    assert facts.context_limit == 8000


def test_model_is_named_after_its_directory_when_that_is_the_current_one(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoints["base"])
    assert load_stage(PIPELINE, CODE2WAV, Path(), StageConfig()).facts.model == "base"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (StageConfig(engine="vllm"), "vllm"),
        (StageConfig(engine_args={"seed": 1}), "engine_args"),
    ],
)
def test_other_engines_are_refused(
    config: StageConfig, said: str, checkpoints: dict[str, Path]
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        load_stage(PIPELINE, CODE2WAV, checkpoints["base"], config)


def test_the_codec_of_25_frames_a_second_is_refused_by_name(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(checkpoints["base"], tmp_path, dirs_exist_ok=True)
    path = tmp_path / CODEC_FOLDER / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "qwen3_tts_25hz"}))
    with pytest.raises(FailedPrecondition, match=r"speech_tokenizer.*'qwen3_tts_25hz'.*12hz"):
        load_stage(PIPELINE, CODE2WAV, tmp_path, StageConfig())
