"""Which pipeline serves a checkpoint of Ming-flash-omni, and how to serve the talker alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines import ming_flash_omni, ming_tts
from antiphon.pipelines.registry import pipeline_for, pipeline_of
from antiphon_services.stage.loading import load_stage
from antiphon_tools.hub.selection import description_files, layout_of

CONFIG = StageConfig(slots=1)


@pytest.fixture(scope="module")
def whole(flash_checkpoints: dict[str, Path]) -> Path:
    """A checkpoint with the thinker's weights."""
    return flash_checkpoints["released"]


def test_a_whole_checkpoint_has_a_thinker(whole: Path) -> None:
    pipeline = pipeline_of(whole)
    assert pipeline is ming_flash_omni.PIPELINE
    facts = {role: load_stage(pipeline, role, whole, CONFIG).facts for role in pipeline.roles}
    assert len({each.checkpoint_fingerprint for each in facts.values()}) == 1
    assert facts["thinker"].input_kinds == ("text", "audio", "image")
    assert facts["talker"].voices == ("db30", "lingguang")


def test_the_talker_of_a_whole_checkpoint_can_be_served_alone(whole: Path) -> None:
    """With `pipeline: ming_tts` in the deployment, or from the folder `talker`."""
    assert pipeline_of(whole / "talker") is ming_tts.PIPELINE
    pipeline = pipeline_for(whole, "ming_tts")
    assert pipeline is ming_tts.PIPELINE
    stage = load_stage(pipeline, "talker", whole, CONFIG)
    assert stage.facts.input_kinds == ("text",)


def test_without_the_thinkers_weights_the_talker_is_served(whole: Path, tmp_path: Path) -> None:
    """This is what a download contains, because only `config.json` is there when it begins."""
    for name in ("config.json", "talker"):
        (tmp_path / name).symlink_to(whole / name)
    pipeline = pipeline_of(tmp_path)
    assert pipeline is ming_tts.PIPELINE
    paths = [each.relative_to(whole).as_posix() for each in whole.rglob("*") if each.is_file()]
    described = description_files(layout_of(pipeline, paths), paths)
    assert "talker/config.json" in described
    assert "tokenizer.json" not in described
    more = description_files(layout_of(ming_flash_omni.PIPELINE, paths), paths)
    assert set(described) < set(more)
    assert "tokenizer.json" in more
