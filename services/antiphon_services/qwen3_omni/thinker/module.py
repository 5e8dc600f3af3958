"""The weights of Qwen3-Omni's thinker, except for its vision tower, under the same names as in the
checkpoint.

`antiphon_services.lm` computes with these modules. The audio tower is the exception, because it has
its own forward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from antiphon_services.lm.modules import (
    Attention,
    AxialRotaryEmbedding,
    DecoderLayer,
    GatedMLP,
    RMSNorm,
    SparseMLP,
)
from antiphon_services.qwen3_omni.thinker.audio_tower import AudioTowerModule


class ThinkerModule(nn.Module):
    """All weights below `thinker.`, except for `thinker.visual.`. `config` is `thinker_config`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        text = config.text_config
        self.config = config
        self.audio_tower = AudioTowerModule(config.audio_config)
        self.visual: nn.Module | None = None
        self.model = _ThinkerStack(text)
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.lm_head.weight.device


class _ThinkerStack(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            _layer(config, index) for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = AxialRotaryEmbedding(config)


def _layer(config: Any, index: int) -> DecoderLayer:
    """Return a decoder layer with experts or with a dense MLP, depending on the configuration."""
    bias = config.attention_bias
    attention = Attention(config, bias=bias, out_bias=bias, head_norms=True)
    step = config.decoder_sparse_step
    sparse = config.num_experts > 0 and (index + 1) % step == 0
    if sparse and index not in config.mlp_only_layers:
        return DecoderLayer(config, attention, SparseMLP(config))
    return DecoderLayer(config, attention, GatedMLP(config, config.intermediate_size))
