"""Describes a checkpoint for vLLM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from antiphon.errors import FailedPrecondition
from antiphon_services.qwen3_omni.thinker.vllm_engine.architectures import TAPPED_THINKER
from antiphon_services.thinker.vllm_engine.loading import VllmCheckpoint
from antiphon_services.vllm.arguments import TextShape


def vllm_checkpoint(checkpoint: Mapping[str, Any]) -> VllmCheckpoint:
    """Return what vLLM needs to know about a `config.json`.

    Raises `FailedPrecondition` if the tapped layer doesn't exist.
    """
    text = checkpoint["thinker_config"]["text_config"]
    silent = checkpoint.get("enable_audio_output") is False
    layer = 0 if silent else checkpoint["talker_config"]["accept_hidden_layer"]
    if not 0 <= layer < text["num_hidden_layers"]:
        raise FailedPrecondition(
            f"the talker reads layer {layer}, but vLLM can only provide layers 0 to "
            f"{text['num_hidden_layers'] - 1}"
        )
    shape = TextShape(
        "thinker_config.text_config",
        layers=text["num_hidden_layers"],
        key_value_heads=text["num_key_value_heads"],
        head_dim=text["head_dim"],
        hidden=text["hidden_size"],
    )
    overrides = _overrides(checkpoint)
    if silent:
        # The tapped model always needs a layer number. If there is no talker, nothing reads its
        # rows.
        overrides["talker_config"] = {"accept_hidden_layer": layer}
    return VllmCheckpoint(TAPPED_THINKER, shape, text["vocab_size"], overrides)


def _overrides(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that vLLM reads but that Transformers 5 doesn't write."""
    thinker = checkpoint["thinker_config"]
    vision = thinker["vision_config"]
    side = math.isqrt(vision["num_position_embeddings"])
    wanted = {
        "text_config": {"tie_word_embeddings": False},
        "vision_config": {
            "image_size": vision["patch_size"] * side,
            "apply_vit_abs_pos_embed": True,
        },
    }
    missing = {
        part: {name: value for name, value in fields.items() if name not in thinker[part]}
        for part, fields in wanted.items()
    }
    return {"thinker_config": {part: fields for part, fields in missing.items() if fields}}
