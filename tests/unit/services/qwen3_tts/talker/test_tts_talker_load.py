"""What a loaded talker tells of its checkpoint, and which checkpoints it refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.files import CONFIG_FILE
from antiphon.pipelines.generation_config import FILE
from antiphon.values.chunk import Tensors
from antiphon_services.qwen3_tts.talker.load import load
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.qwen3_tts.tiny_checkpoint import build_tiny_tts
from antiphon_testkit.qwen3_tts.tiny_shape import CUSTOM_VOICE
from tests.unit.services.prefill_steps import prefill_steps
from tests.unit.services.qwen3_tts.talker.tts_talker_lab import CASES, GREEDY, Lab, asked, frames_of

SMALL = StageConfig(slots=2, context_limit=64)


@pytest.fixture
def copy(checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoints["base"], tmp_path / "copy"))


def change(path: Path, **changed: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def test_facts_are_the_checkpoints(labs: dict[str, Lab]) -> None:
    custom, base = labs["custom_voice"].facts, labs["base"].facts
    assert sorted(custom.voices) == ["alto", "bass", "hill"]
    assert base.voices == ()
    assert (custom.code_groups, custom.code_entries) == (4, 64)
    assert (base.code_groups, base.code_entries) == (4, 128)
    assert custom.context_limit == 512
    assert custom.input_kinds == ("text",)
    options = {option.name: option for option in base.options}
    assert set(options["language"].choices) == {"auto", "english", "chinese"}
    assert "Not supported by this checkpoint (base)" in options["instruction"].description
    assert "Not supported by this" not in options["reference_audio"].description


def test_sampling_is_the_checkpoints_where_a_request_says_nothing(
    labs: dict[str, Lab], copy: Path
) -> None:
    told = labs["base"].facts.default_sampling
    assert told == replace(GREEDY, temperature=0.9, max_tokens=8192)
    change(copy / FILE, do_sample=False, top_k=7)
    assert load(copy, SMALL).facts.default_sampling == replace(told, temperature=0.0, top_k=7)
    (copy / FILE).unlink()
    assert load(copy, SMALL).facts.default_sampling == replace(told, max_tokens=2048)


def test_voice_is_designed_by_an_instruction(
    recorded: Tensors, labs: dict[str, Lab], tmp_path: Path
) -> None:
    build_tiny_tts(tmp_path / "design", replace(CUSTOM_VOICE, kind="voice_design"))
    design, case = Lab(tmp_path / "design", recorded), CASES["instruction-1-whole"]
    question = asked(case.text, instruction=case.instruction)
    # The same weights, and like those of preset voices without one.
    (alike,), (output,) = labs["custom_voice"].speak(question), design.speak(question)
    assert frames_of(output) == frames_of(alike)
    (plain,) = design.speak(asked(case.text))
    assert frames_of(plain) != frames_of(output)


@pytest.mark.parametrize(
    ("file", "changed", "told"),
    [
        (CONFIG_FILE, {"tts_model_type": "singing"}, "tts_model_type"),
        (CONFIG_FILE, {"tts_pad_token_id": None}, "tts_pad_token_id"),
        (CONFIG_FILE, {"speaker_encoder_config": None}, "speaker_encoder_config"),
        (CONFIG_FILE, {"talker_config": None}, "codec_pad_id"),
        (FILE, {"subtalker_dosample": False}, "greedy"),
        (FILE, {"temperature": "hot"}, FILE),
        ("speech_tokenizer/config.json", {"decoder_config": {"codebook_size": 64}}, "codes below"),
        ("speech_tokenizer/config.json", {"decoder_config": None}, "speech_tokenizer"),
    ],
)
def test_checkpoint_is_refused_when_it_does_not_fit_together(
    file: str, changed: dict[str, Any], told: str, copy: Path
) -> None:
    change(copy / file, **changed)
    with pytest.raises(FailedPrecondition, match=told):
        load(copy, SMALL)


def test_context_limit_is_refused_above_the_checkpoints(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(InvalidArgument, match="context_limit"):
        load(checkpoints["base"], StageConfig(context_limit=40_000))


def test_stage_is_ready_when_its_context_has_no_room_for_a_first_text(
    checkpoints: dict[str, Path],
) -> None:
    assert load(checkpoints["base"], StageConfig(slots=2, context_limit=8)).facts.context_limit == 8


def test_rows_of_a_step_are_those_of_the_setting(checkpoints: dict[str, Path]) -> None:
    engine = load(
        checkpoints["custom_voice"], stage_config(slots=2, context_limit=512, prefill_rows=128)
    ).engine
    long = asked("find the number of days " * 40, text_mode="whole")
    steps, positions = prefill_steps(engine, *long)
    assert positions > 128
    assert steps == -(-positions // 128)
