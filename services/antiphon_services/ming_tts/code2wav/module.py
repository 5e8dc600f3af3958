"""The audio decoder of Ming TTS, with the names of the checkpoint (`audio.decoder`, in
Ming-flash-omni `decoder`).

Its layers are those of Qwen2 in transformers. The module holds weights; `decoder.py` computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import Qwen2Config

from antiphon.pipelines.ming_tts import LATENT_WIDTH, ROW_SAMPLES
from antiphon_services.lm.qwen2_stack import Qwen2Stack

DECODER = "decoder."

WINDOW_ROWS = 4
"""Rows that a window of the inverse transform spans."""

UNUSED = ("decoder.embed_tokens.weight", "head.istft.window")
"""A table that nothing reads, and what is computed here."""

SEMANTIC = ("fc2", "fc3", "semantic_model")
"""Children that understand audio, which some checkpoints have."""


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """`backbone` is that of `audio_tokenizer_config.dec_kwargs` in the checkpoint."""

    backbone: dict[str, Any]


class AudioDecoderModule(nn.Module):
    """All of `audio.decoder` but for `UNUSED`."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        config = Qwen2Config.from_dict(sizes.backbone)
        self.fc1 = nn.Linear(LATENT_WIDTH, config.hidden_size)
        self.decoder = Qwen2Stack(config, words=False)
        self.head = nn.Module()
        self.head.out = nn.Linear(config.hidden_size, WINDOW_ROWS * ROW_SAMPLES + 2)
        self.layer_count = int(config.num_hidden_layers)
        # Rows that a row sees, with itself; 0 means all before it.
        self.window = config.sliding_window or 0
