"""The configuration's classes read a file as transformers' do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoTokenizer, Qwen3OmniMoeConfig

from antiphon_services.qwen3_omni.config import OmniConfig
from antiphon_services.qwen3_omni.thinker.load import TOKENIZER
from antiphon_services.text.literal import load_tokenizer

FOLDER = Path(__file__).parents[4]
FILES = {
    "released": FOLDER / "tests/unit/services/released_qwen3_omni.json",
    "demo": FOLDER / "models/antiphon-demo/config.json",
}


def told(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(FILES[name].read_text()) if name in FILES else {}
    return read


@pytest.mark.parametrize("name", ["released", "demo", "defaults"])
def test_every_object_equals_that_of_transformers(name: str) -> None:
    expected = Qwen3OmniMoeConfig.from_dict(told(name)).to_dict()
    assert OmniConfig.from_dict(told(name)).to_dict() == expected


@pytest.mark.parametrize("part", ["thinker_config", "talker_config", "code2wav_config"])
def test_unknown_fields_are_kept_as_transformers_keeps_them(part: str) -> None:
    changed = told("demo")
    changed[part]["of_tomorrow"] = 7
    assert getattr(OmniConfig.from_dict(changed), part).of_tomorrow == 7


def test_value_of_another_type_is_refused_by_its_name() -> None:
    changed = told("demo")
    changed["talker_config"]["text_config"]["num_hidden_layers"] = "two"
    with pytest.raises(StrictDataclassFieldValidationError, match="num_hidden_layers"):
        OmniConfig.from_dict(changed)


def test_tokeniser_is_read_by_the_class_that_transformers_chooses() -> None:
    folder = FILES["demo"].parent
    chosen, expected = (
        load_tokenizer(folder, registered=TOKENIZER),
        AutoTokenizer.from_pretrained(folder),
    )
    assert type(chosen) is type(expected)
    assert type(chosen).__name__ == TOKENIZER
    assert chosen.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
    assert chosen.chat_template == expected.chat_template


def test_tokeniser_of_another_class_is_left_to_transformers(tmp_path: Path) -> None:
    folder = FILES["demo"].parent
    for each in folder.iterdir():
        if each.suffix != ".safetensors":
            (tmp_path / each.name).write_bytes(each.read_bytes())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    expected = type(AutoTokenizer.from_pretrained(tmp_path))
    assert type(load_tokenizer(tmp_path, registered=TOKENIZER)) is expected
    assert expected.__name__ != TOKENIZER
