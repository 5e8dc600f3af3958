"""Objects of a checkpoint's configuration."""

import copy
from typing import Any

import pytest
from huggingface_hub.errors import (
    StrictDataclassClassValidationError,
    StrictDataclassFieldValidationError,
)

from antiphon_services.stage.config_object import ConfigObject


class _Layers(ConfigObject):
    aliases = {"layers": "num_hidden_layers"}  # noqa: RUF012

    num_hidden_layers: int = 2
    head_dim: int | None = None
    max_position_embeddings: int = 64
    layer_types: list[str] | None = None
    rope_parameters: dict[str, Any] | None = None


def test_content_is_not_changed_when_it_is_read() -> None:
    rope = {"type": "yarn", "factor": 2.0}
    content = {"rope_scaling": rope, "rope_theta": 7.0, "of_tomorrow": [1]}
    before = copy.deepcopy(content)
    made = _Layers.from_dict(content)
    assert content == before
    assert made.rope_parameters == {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": 2.0,
        "rope_theta": 7.0,
        "original_max_position_embeddings": 64,
    }


def test_copy_is_independent_and_validates() -> None:
    made = _Layers(layers=3)
    assert (made.layers, made.num_hidden_layers) == (3, 3)
    copied = copy.deepcopy(made)
    copied.num_hidden_layers = 4
    assert made.num_hidden_layers == 3
    with pytest.raises(StrictDataclassFieldValidationError, match="num_hidden_layers"):
        copied.num_hidden_layers = "four"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "high_freq_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 7.0}}}, "full_attention"),
        ({"head_dim": 7}, "head_dim"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_invalid_object_is_refused_by_the_field_s_name(content: dict[str, Any], named: str) -> None:
    with pytest.raises(StrictDataclassClassValidationError, match=named):
        _Layers.from_dict(content)


def test_unknown_attribute_is_no_field() -> None:
    with pytest.raises(AttributeError, match="has no field width"):
        _ = _Layers().width
