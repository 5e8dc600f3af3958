"""A checkpoint's configuration is read by the class that its family names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import Qwen2_5OmniConfig

from antiphon.errors import FailedPrecondition
from antiphon_services.stage.hugging_face import load_config


def write(directory: Path, **told: object) -> Path:
    (directory / "config.json").write_text(json.dumps(told))
    return directory


def test_configuration_is_of_the_class_that_the_family_names(tmp_path: Path) -> None:
    write(tmp_path, talker_config={"audio_end_token_id": 7})
    config = load_config(Qwen2_5OmniConfig, tmp_path, "talker_config")
    assert isinstance(config, Qwen2_5OmniConfig)


@pytest.mark.parametrize("part", [None, [], "none"])
def test_checkpoint_is_refused_when_a_part_is_no_object(tmp_path: Path, part: object) -> None:
    write(tmp_path, talker_config=part)
    with pytest.raises(FailedPrecondition, match=r"config\.json: talker_config is missing"):
        load_config(Qwen2_5OmniConfig, tmp_path, "talker_config")


def test_checkpoint_is_refused_when_the_class_takes_no_such_value(tmp_path: Path) -> None:
    write(tmp_path, talker_config={}, thinker_config="large")
    with pytest.raises(FailedPrecondition, match=r"config\.json: can't be used"):
        load_config(Qwen2_5OmniConfig, tmp_path, "talker_config")
