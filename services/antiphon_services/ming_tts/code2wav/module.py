"""The audio decoder of Ming TTS. Tensors have the same names as in its checkpoint.

These tensors are below `audio.decoder`, or below `decoder` in Ming-flash-omni. The layers are the
same as Qwen2's in transformers. The computations are in `decoder.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from antiphon.pipelines.ming_tts import LATENT_WIDTH, ROW_SAMPLES
from antiphon_services.lm.qwen2_config import Qwen2Config
from antiphon_services.lm.qwen2_stack import Qwen2Stack

DECODER = "decoder."

WINDOW_ROWS = 4
"""The number of rows that a window of the inverse transform spans."""

UNUSED = ("decoder.embed_tokens.weight", "head.istft.window")
"""Tensors that are not loaded: a table that is not used, and a window that is computed instead."""

SEMANTIC = ("fc2", "fc3", "semantic_model")
"""The modules for audio understanding, which only some checkpoints contain."""


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """The sizes of the decoder.

    `backbone` is the object of this name in the checkpoint's `audio_tokenizer_config.dec_kwargs`.
    """

    backbone: dict[str, Any]


class AudioDecoderModule(nn.Module):
    """All tensors of `audio.decoder` except `UNUSED`."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        config = Qwen2Config.from_dict(sizes.backbone)
        self.fc1 = nn.Linear(LATENT_WIDTH, config.hidden_size)
        self.decoder = Qwen2Stack(config, words=False)
        self.head = nn.Module()
        self.head.out = nn.Linear(config.hidden_size, WINDOW_ROWS * ROW_SAMPLES + 2)
        self.layer_count = int(config.num_hidden_layers)
        # The number of rows that a row attends to, including itself. 0 means all previous rows.
        self.window = config.sliding_window or 0
