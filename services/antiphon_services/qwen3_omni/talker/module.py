"""The weights of Qwen3-Omni's talker, under the same names as in the checkpoint.

`antiphon_services.lm` computes with these modules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from antiphon_services.lm.modules import (
    Attention,
    AxialRotaryEmbedding,
    DecoderLayer,
    GatedMLP,
    RMSNorm,
    RotaryEmbedding,
    SparseMLP,
    activation,
)


class OmniTalkerModule(nn.Module):
    """All weights below `talker.`. `config` is `talker_config`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        text = config.text_config
        self.config = config
        self.model = _OmniTalkerStack(text)
        self.text_projection = _Projection(config)
        self.hidden_projection = _Projection(config)
        self.codec_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.code_predictor = _OmniCodePredictor(config.code_predictor_config)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.codec_head.weight.device


class _OmniTalkerStack(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        shared = config.shared_expert_intermediate_size
        self.layers = nn.ModuleList(
            DecoderLayer(config, _attention(config), SparseMLP(config, shared=shared))
            for _ in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = AxialRotaryEmbedding(config)
        self.codec_embedding = nn.Embedding(config.vocab_size, config.hidden_size)


class _Projection(nn.Module):
    """Projects rows from the thinker's width to the talker's width."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        text = config.text_config
        self.linear_fc1 = nn.Linear(config.thinker_hidden_size, text.intermediate_size)
        self.linear_fc2 = nn.Linear(text.intermediate_size, text.hidden_size)
        self.act_fn = activation(text.hidden_act)

    def forward(self, rows: Tensor) -> Tensor:
        """Project rows [n, thinker hidden] to [n, hidden]."""
        projected: Tensor = self.linear_fc2(self.act_fn(self.linear_fc1(rows)))
        return projected


class _OmniPredictorStack(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DecoderLayer(config, _attention(config), GatedMLP(config, config.intermediate_size))
            for _ in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)
        self.codec_embedding = nn.ModuleList(
            nn.Embedding(config.vocab_size, config.hidden_size)
            for _ in range(config.num_code_groups - 1)
        )


class _OmniCodePredictor(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.model = _OmniPredictorStack(config)
        self.lm_head = nn.ModuleList(
            nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            for _ in self.model.codec_embedding
        )


def _attention(config: Any) -> Attention:
    bias = config.attention_bias
    return Attention(config, bias=bias, out_bias=bias, head_norms=True)
