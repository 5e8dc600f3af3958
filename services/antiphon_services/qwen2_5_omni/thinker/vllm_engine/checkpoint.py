"""Describes a checkpoint for vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon_services.qwen2_5_omni.thinker.vllm_engine.architectures import TAPPED_THINKER
from antiphon_services.thinker.vllm_engine.loading import VllmCheckpoint
from antiphon_services.vllm.arguments import TextShape


def vllm_checkpoint(checkpoint: Mapping[str, Any]) -> VllmCheckpoint:
    """Return what vLLM needs to know about a `config.json`."""
    text = checkpoint["thinker_config"]["text_config"]
    shape = TextShape(
        "thinker_config.text_config",
        layers=text["num_hidden_layers"],
        key_value_heads=text["num_key_value_heads"],
        head_dim=text["hidden_size"] // text["num_attention_heads"],
        hidden=text["hidden_size"],
    )
    return VllmCheckpoint(TAPPED_THINKER, shape, text["vocab_size"], _overrides(checkpoint))


def _overrides(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that vLLM reads from a section of the thinker's configuration, while
    Hugging Face reads them from the thinker's top level.

    These fields specify whether the word table is also the head, and the number of positions per
    second of video.
    """
    thinker = checkpoint["thinker_config"]
    return {
        "thinker_config": {
            "text_config": {"tie_word_embeddings": thinker.get("tie_word_embeddings", False)},
            "vision_config": {"tokens_per_second": thinker.get("position_id_per_seconds", 25)},
        }
    }
