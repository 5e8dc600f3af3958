"""The weights of Qwen3-TTS's talker, under the same names as in the checkpoint.

transformers doesn't have a class for this model, but its layers are the same as in Qwen3. The
released models have rotary positions with three axes. Since there are no images, all axes are
equal, so a plain rotary embedding is exact. `antiphon_services.lm` computes with these modules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.activations import ACT2FN
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
)

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config, reading
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights

# The fields of `talker_config` and its `code_predictor_config` that the layers need.
_LAYER_KEYS = (
    "attention_bias",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
)


class _Stack(nn.Module):
    """Decoder layers with the interface required by `antiphon_services.lm.decoder`."""

    def __init__(self, part: dict[str, Any]) -> None:
        super().__init__()
        rope = {"rope_type": "default", "rope_theta": part["rope_theta"]}
        config = Qwen3Config(**{key: part[key] for key in _LAYER_KEYS}, rope_parameters=rope)
        self.layers = nn.ModuleList(
            Qwen3DecoderLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config)


class _TalkerStack(_Stack):
    def __init__(self, part: dict[str, Any]) -> None:
        super().__init__(part)
        self.codec_embedding = nn.Embedding(part["vocab_size"], part["hidden_size"])
        self.text_embedding = nn.Embedding(part["text_vocab_size"], part["text_hidden_size"])


class _PredictorStack(_Stack):
    def __init__(self, part: dict[str, Any], embedding_width: int) -> None:
        super().__init__(part)
        tables = range(part["num_code_groups"] - 1)
        self.codec_embedding = nn.ModuleList(
            nn.Embedding(part["vocab_size"], embedding_width) for _ in tables
        )


class _CodePredictor(nn.Module):
    def __init__(self, part: dict[str, Any], talker_width: int) -> None:
        super().__init__()
        width = part["hidden_size"]
        self.model = _PredictorStack(part, talker_width)
        self.lm_head = nn.ModuleList(
            nn.Linear(width, part["vocab_size"], bias=False) for _ in self.model.codec_embedding
        )
        self.small_to_mtp_projection = (
            nn.Identity() if width == talker_width else nn.Linear(talker_width, width)
        )


class _TextProjection(nn.Module):
    def __init__(self, inputs: int, outputs: int, activation: str) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(inputs, inputs)
        self.linear_fc2 = nn.Linear(inputs, outputs)
        self.act_fn = ACT2FN[activation]

    def forward(self, rows: Tensor) -> Tensor:
        """Project rows [n, text width] to [n, hidden]."""
        projected: Tensor = self.linear_fc2(self.act_fn(self.linear_fc1(rows)))
        return projected


class TalkerModule(nn.Module):
    """All weights below `talker.` in `model.safetensors`. `config` is `talker_config`."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.config = config
        self.model = _TalkerStack(config)
        self.text_projection = _TextProjection(
            config["text_hidden_size"], width, config["hidden_act"]
        )
        self.codec_head = nn.Linear(width, config["vocab_size"], bias=False)
        self.code_predictor = _CodePredictor(config["code_predictor_config"], width)


def load_talker_module(
    model_dir: Path, dtype: torch.dtype, device: torch.device | str
) -> TalkerModule:
    """Load a checkpoint's talker. Raises `FailedPrecondition` if it can't be loaded."""
    path, part = model_dir / CONFIG_FILE, read_config(model_dir).get("talker_config")
    if not isinstance(part, dict) or not isinstance(part.get("code_predictor_config"), dict):
        raise FailedPrecondition(
            f"{path}: talker_config or its code_predictor_config is missing or not an object; "
            f"{REMEDY}"
        )
    with reading(path):
        weights = Weights(model_dir)
        return load_submodule(TalkerModule, part, "talker.", weights, dtype=dtype, device=device)
