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
from tests.unit.services.transformers_config import compare

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
    compare(OmniConfig.from_dict(told(name)), Qwen3OmniMoeConfig.from_dict(told(name)))


def test_rotary_embedding_equals_that_of_transformers_when_it_is_stretched() -> None:
    changed = told("demo")
    for rope in ({"type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0}):
        text = changed["thinker_config"]["text_config"]
        text.pop("rope_parameters", None)
        text |= {"rope_scaling": rope, "rope_theta": 7.0}
        compare(OmniConfig.from_dict(changed), Qwen3OmniMoeConfig.from_dict(changed))


def test_other_names_of_fields_are_read_as_transformers_reads_them() -> None:
    changed = told("demo")
    changed["talker_config"]["text_config"]["num_local_experts"] = 3
    changed["thinker_config"]["audio_config"]["hidden_size"] = 24
    compare(OmniConfig.from_dict(changed), Qwen3OmniMoeConfig.from_dict(changed))
    made = OmniConfig.from_dict(changed)
    assert made.talker_config.text_config.num_experts == 3
    assert made.thinker_config.audio_config.d_model == 24


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
