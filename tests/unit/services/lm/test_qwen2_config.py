"""The configuration of Qwen2's layers is read as transformers reads it."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from antiphon_services.lm.qwen2_config import Qwen2Config
from tests.unit.services.transformers_config import compare


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"num_hidden_layers": 4, "use_sliding_window": True, "max_window_layers": 2},
        {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": None},
        {"num_key_value_heads": None, "num_attention_heads": 6, "sliding_window": 5},
        {"rope_theta": 640000.0, "rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"local_dim": 24, "speech_vocab_size": "1025-129", "rope_scaling": None},
    ],
)
def test_configuration_equals_that_of_transformers(content: dict[str, Any]) -> None:
    compare(Qwen2Config.from_dict(content), transformers.Qwen2Config.from_dict(content))
