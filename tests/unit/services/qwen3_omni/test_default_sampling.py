"""Stages sample as their checkpoint says when a request does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.generation_config import FILE
from antiphon_services.qwen3_omni.talker import load as talker
from antiphon_services.qwen3_omni.thinker import load as thinker
from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """One that says how to sample."""
    build_tiny_checkpoint(tmp_path / "tiny")
    path = tmp_path / "tiny" / FILE
    said = {"talker_temperature": 0.0, "thinker_max_new_tokens": 7}
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    return tmp_path / "tiny"


def test_stage_takes_its_own_settings_from_the_checkpoint(checkpoint: Path) -> None:
    spoken = talker.load(checkpoint, StageConfig()).facts.default_sampling
    thought = thinker.load(checkpoint, StageConfig()).facts.default_sampling
    assert (spoken.temperature, spoken.max_tokens) == (0.0, talker.DEFAULT_SAMPLING.max_tokens)
    assert (thought.max_tokens, thought.top_k) == (7, thinker.DEFAULT_SAMPLING.top_k)


def test_stage_does_not_load_when_the_checkpoints_settings_are_none(checkpoint: Path) -> None:
    (checkpoint / FILE).write_text('{"talker_temperature": "hot"}')
    with pytest.raises(FailedPrecondition, match="talker_"):
        talker.load(checkpoint, StageConfig())
