"""Talker and token2wav come up from a checkpoint as a stage process loads them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.qwen2_5_omni import CODES, PIPELINE, TALKER, TOKEN2WAV, VOICES_FILE
from antiphon.runtime.engine import InputChunk, LoadedStage, SegmentSettings
from antiphon.values.segment import FinishReason
from antiphon_services.stage.loading import load_stage
from antiphon_testkit.drive_engine import run_segment
from antiphon_testkit.flat_settings import stage_config

BOTH = pytest.mark.parametrize("role", [TALKER, TOKEN2WAV])


class Hostile:
    """A pickle of this asks its reader to make a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (self.path,)


def load(role: str, directory: Path, **settings: Any) -> LoadedStage:
    return load_stage(PIPELINE, role, directory, stage_config(slots=2, **settings))


@pytest.fixture
def broken(omni25_directory: Path, tmp_path: Path) -> Path:
    """A checkpoint that a test may break."""
    return Path(shutil.copytree(omni25_directory, tmp_path / "broken"))


def voices_of(directory: Path) -> dict[str, dict[str, Any]]:
    voices: dict[str, dict[str, Any]] = torch.load(directory / VOICES_FILE)
    return voices


@BOTH
def test_stage_tells_the_checkpoints_voices_and_codes(role: str, omni25_directory: Path) -> None:
    facts = load(role, omni25_directory).facts
    assert facts.voices == ("chelsie", "ethan")
    assert (facts.code_groups, facts.code_entries) == (1, 66)
    assert facts.context_limit == {TALKER: 32768, TOKEN2WAV: 16384}[role]
    told = (facts.sample_rate_hz, facts.samples_per_frame)
    assert told == {TALKER: (0, 0), TOKEN2WAV: (24_000, 480)}[role]


def test_talkers_settings_are_the_references_unless_the_checkpoint_says_otherwise(
    broken: Path,
) -> None:
    told = load(TALKER, broken).facts.default_sampling
    assert (told.temperature, told.top_k, told.top_p) == (0.9, 40, 0.8)
    assert (told.repetition_penalty, told.max_tokens, told.seed) == (1.05, 4096, 0)
    file = broken / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"talker_top_k": 7}))
    assert load(TALKER, broken).facts.default_sampling == replace(told, top_k=7)


@pytest.mark.parametrize("held", [0, 2])
def test_stream_holds_back_as_many_blocks_as_the_deployment_says(
    omni25_directory: Path, held: int
) -> None:
    stage = load(TOKEN2WAV, omni25_directory, held_blocks=held)
    codes = np.zeros((48, 1), np.uint16)
    chunks = [InputChunk(CODES, at, {CODES: codes[at : at + 12]}) for at in range(0, 48, 12)]
    end = InputChunk(CODES, 48, {}, segment_finished=True, finish_reason=FinishReason.STOP)
    settings = SegmentSettings("Ethan", stage.facts.default_sampling, frozenset({"audio"}))
    output = run_segment(stage.engine, settings, [*chunks, end])
    counts = [len(each.tensors["samples"]) for each in output.emitted]
    # Before the end came: blocks of 24 frames of 240 samples each, without the vocoder's context.
    assert sum(counts[:-1]) == 240 * (24 * (4 - held) - 20)
    assert sum(counts) == 480 * 48


@pytest.mark.parametrize("limit", [1, 12])
def test_token2wav_loads_when_the_limit_is_below_what_warms_it_up(
    omni25_directory: Path, limit: int
) -> None:
    assert load(TOKEN2WAV, omni25_directory, context_limit=limit).facts.context_limit == limit


@BOTH
def test_hostile_voices_are_refused_and_not_run(role: str, broken: Path, tmp_path: Path) -> None:
    voices = voices_of(broken)
    voices["Ethan"]["bos_token"] = voices["Ethan"]["cond"] = Hostile(tmp_path / "made")
    torch.save(voices, broken / VOICES_FILE)
    with pytest.raises(
        FailedPrecondition,
        match=r"spk_dict\.pt: was rejected, because loading it might execute code",
    ):
        load(role, broken)
    assert not (tmp_path / "made").exists()


@BOTH
@pytest.mark.parametrize("content", [{}, ["Ethan"], {"Ethan": 1}, {"Ethan": {}}], ids=str)
def test_voices_are_refused_when_they_are_none(role: str, broken: Path, content: Any) -> None:
    torch.save(content, broken / VOICES_FILE)
    with pytest.raises(FailedPrecondition, match=r"voice|spk_dict\.pt: can't be used"):
        load(role, broken)


@pytest.mark.parametrize("id_", ["8", 10_000, -1])
def test_voice_is_refused_when_its_id_is_in_no_table(broken: Path, id_: object) -> None:
    voices = voices_of(broken)
    voices["Ethan"]["bos_token"] = id_
    torch.save(voices, broken / VOICES_FILE)
    with pytest.raises(FailedPrecondition, match="Ethan"):
        load(TALKER, broken)


@pytest.mark.parametrize(
    ("role", "settings", "field"),
    [
        (TALKER, {"context_limit": 40_000}, "context_limit"),
        (TOKEN2WAV, {"context_limit": 20_000}, "context_limit"),
        (TOKEN2WAV, {"dtype": "bfloat16"}, "dtype"),
        (TALKER, {"engine": "vllm"}, "engine"),
        (TOKEN2WAV, {"engine": "vllm"}, "engine"),
    ],
)
def test_setting_is_refused_when_the_stage_has_no_place_for_it(
    role: str, settings: dict[str, Any], field: str, omni25_directory: Path
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        load(role, omni25_directory, **settings)
    assert refused.value.field == field
