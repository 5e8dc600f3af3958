"""The language model of MiMo-Audio. Tensors have the same names as in its checkpoint.

The layers of all three models are the same as Qwen2's in transformers. The modules only store
weights. The computations are in `group_encoder.py`, `frame_predictor.py` and
`antiphon_services.lm`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from antiphon_services.lm.qwen2_config import Qwen2Config
from antiphon_services.lm.qwen2_stack import Qwen2Stack


class SpeechHeads(nn.Module):
    """All tensors of the checkpoint that are not below `model`.

    They convert groups to rows, and states to tokens and groups. `config` is the `config.json` of
    the checkpoint as a `Qwen2Config`, which preserves fields that Qwen2 does not define.
    """

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        hidden, width, group = config.hidden_size, config.local_dim, group_width(config)
        sizes = per_channel(config.speech_vocab_size, config.audio_channels)
        self.lm_head = nn.Linear(hidden, config.vocab_size, bias=False)
        self.local_transformer = Qwen2Stack(
            _narrowed(config, width, config.local_ffn_dim, config.local_layers), words=False
        )
        self.input_local_transformer = Qwen2Stack(
            _narrowed(config, group, 4 * group, config.input_local_layers), words=False
        )
        self.local_transformer_lm_heads = nn.ModuleList(
            nn.Linear(width, size, bias=False) for size in sizes
        )
        self.speech_embeddings = nn.ModuleList(nn.Embedding(size, group) for size in sizes)
        self.speech_group_downcast = nn.Linear(config.group_size * group, hidden, bias=False)
        self.hidden_states_downcast = nn.Linear(hidden, width, bias=False)
        if group != width:
            self.speech_embeddings_to_local = nn.Linear(group, width, bias=False)


class SpeechTextModule(SpeechHeads):
    """All tensors of the checkpoint."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(config)
        self.model = Qwen2Stack(config, words=True)


def group_width(config: Qwen2Config) -> int:
    """Return the width of the transformer that encodes groups, which is also that of code
    embeddings.
    """
    return int(getattr(config, "input_local_dim", None) or config.local_dim)


def per_channel(value: str | int, channels: int) -> Sequence[int]:
    """Parse one number for each channel.

    A value such as `1025-129` lists the numbers. A single number applies to all channels.
    """
    if isinstance(value, str) and "-" in value:
        return tuple(int(each) for each in value.split("-"))
    return (int(value),) * channels


def _narrowed(config: Qwen2Config, width: int, intermediate: int, layers: int) -> Qwen2Config:
    """Return the configuration of a secondary transformer.

    It has the same number of key heads and query heads.
    """
    heads = config.local_attn_heads
    changes = {
        "hidden_size": width,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": width // heads,
        "layer_types": ["full_attention"] * layers,
    }
    return Qwen2Config.from_dict(config.to_dict() | changes)
