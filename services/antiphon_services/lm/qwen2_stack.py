"""Qwen2's decoder layers without the rest of the model, as modules that contain weights."""

from __future__ import annotations

from torch import nn

from antiphon_services.lm.modules import (
    Attention,
    DecoderLayer,
    GatedMLP,
    RMSNorm,
    RotaryEmbedding,
)
from antiphon_services.lm.qwen2_config import Qwen2Config


class Qwen2Stack(nn.Module):
    """The layers, the final norm and the rotary embedding, under the same names as in transformers'
    `Qwen2Model`.

    `lm.decoder.Decoder` computes with this stack. If `words` is true, the stack also contains the
    embedding table.
    """

    def __init__(self, config: Qwen2Config, *, words: bool) -> None:
        super().__init__()
        if words:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)


def _layer(config: Qwen2Config) -> DecoderLayer:
    attention = Attention(config, bias=True, out_bias=False, head_norms=False)
    return DecoderLayer(config, attention, GatedMLP(config, config.intermediate_size))
