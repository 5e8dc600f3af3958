from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3OmniMoeForConditionalGeneration

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.segment import FinishReason
from antiphon_services.qwen3_omni.code2wav.load import load
from antiphon_testkit.drive_engine import run_segment
from antiphon_testkit.qwen3_omni.tiny_checkpoint import (
    OTHER,
    SMALL,
    TinyShape,
    build_tiny_checkpoint,
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=[SMALL, OTHER], ids=["small", "other"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    shape: TinyShape = request.param
    model_dir = tmp_path_factory.mktemp("checkpoint") / "tiny-omni"
    build_tiny_checkpoint(model_dir, shape, seed=1)
    return model_dir, shape


def change_config(model_dir: Path, target: Path, **changes: Any) -> Path:
    """A copy of the checkpoint with other entries in `config.json`."""
    shutil.copytree(model_dir, target)
    config = json.loads((target / "config.json").read_text())
    part = changes.pop("code2wav_config", {})
    config |= changes
    config["code2wav_config"] |= part
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_load_gives_audio_of_the_whole_model_when_checkpoint_is_tiny(
    tiny: tuple[Path, TinyShape],
) -> None:
    model_dir, shape = tiny
    stage = load(model_dir, StageConfig())
    rng = np.random.default_rng(0)
    codes = rng.integers(0, shape.codebook_size, (30, shape.code_groups), dtype=np.uint16)
    settings = SegmentSettings("", stage.facts.default_sampling, frozenset({"audio"}))
    chunks = [
        InputChunk("codes", 0, {"codes": codes[:4]}),
        InputChunk("codes", 4, {"codes": codes[4:]}, True, FinishReason.STOP),
    ]
    samples = run_segment(stage.engine, settings, chunks).tensors("audio")["samples"]
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(model_dir)
    with torch.inference_mode():
        expected = model.code2wav(torch.from_numpy(codes.astype(np.int64)).T[None])[0, 0].numpy()
    assert 0.05 < np.abs(expected).max() < 1
    np.testing.assert_allclose(samples, expected, rtol=0, atol=1e-5)


def test_load_tells_facts_of_the_checkpoint(tiny: tuple[Path, TinyShape]) -> None:
    model_dir, shape = tiny
    facts = load(model_dir, StageConfig()).facts
    assert facts.model == "tiny-omni"
    assert facts.checkpoint_fingerprint == fingerprint(model_dir)
    assert facts.engine == "torch"
    assert (facts.sample_rate_hz, facts.samples_per_frame) == (24_000, 1920)
    assert (facts.code_groups, facts.code_entries) == (shape.code_groups, shape.codebook_size)
    assert facts.context_limit == 8000
    assert load(model_dir, StageConfig(context_limit=7)).facts.context_limit == 7


def test_load_tells_memory_of_all_slots(
    tiny: tuple[Path, TinyShape], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    load(tiny[0], StageConfig(slots=3))
    (line,) = [each.message for each in caplog.records if "decoder state" in each.message]
    assert line.startswith("decoder state: 3 slots of ")


def test_load_refuses_engine_when_it_has_another(tiny: tuple[Path, TinyShape]) -> None:
    with pytest.raises(InvalidArgument, match="vllm"):
        load(tiny[0], StageConfig(engine="vllm"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"enable_audio_output": False}, "can't generate audio"),
        ({"code2wav_config": {"sliding_window": None}}, "sliding_window"),
        ({"code2wav_config": {"sliding_window": 0}}, "can't stream"),
        ({"code2wav_config": {"hidden_size": 64}}, "according to its configuration"),
    ],
)
def test_load_refuses_checkpoint_when_config_does_not_fit(
    tiny: tuple[Path, TinyShape], tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    changed = change_config(tiny[0], tmp_path / "changed", **changes)
    with pytest.raises(FailedPrecondition, match=words):
        load(changed, StageConfig())
