"""The decoder layers of Qwen2 without the surrounding model, as modules that contain weights."""

from __future__ import annotations

from torch import nn
from transformers import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import (
    Qwen2DecoderLayer,
    Qwen2RMSNorm,
    Qwen2RotaryEmbedding,
)


class Qwen2Stack(nn.Module):
    """The layers, the final norm and the rotary embedding, with the same names as in transformers'
    `Qwen2Model`.

    `lm.decoder.Decoder` computes with this stack. If `words` is true, it includes the embedding
    table.
    """

    def __init__(self, config: Qwen2Config, *, words: bool) -> None:
        super().__init__()
        if words:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Qwen2DecoderLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.norm = Qwen2RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Qwen2RotaryEmbedding(config)
