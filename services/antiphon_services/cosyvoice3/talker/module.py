"""The talker of CosyVoice3, with the names of `llm.pt`.

Its layers are those of Qwen2 in transformers. The module holds weights; `antiphon_services.lm`
computes with them.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import Qwen2Config

from antiphon.pipelines.cosyvoice3 import SPEECH_IDS
from antiphon_services.lm.qwen2_stack import Qwen2Stack

EXTRA_IDS = 200
"""Rows of table and head behind the speech ids, of which few have a meaning."""

UNUSED = ("llm.model.lm_head.weight",)
"""The head that writes text."""


class SpeechTalkerModule(nn.Module):
    """All of `llm.pt` but for `UNUSED`; `config` is that of `CosyVoice-BlankEN`."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        width = config.hidden_size
        self.llm = nn.Module()
        self.llm.model = nn.Module()
        self.llm.model.model = Qwen2Stack(config, words=True)
        self.llm_decoder = nn.Linear(width, SPEECH_IDS + EXTRA_IDS, bias=False)
        self.speech_embedding = nn.Embedding(SPEECH_IDS + EXTRA_IDS, width)

    @property
    def stack(self) -> Any:
        """The decoder layers as `lm.decoder` takes them, with the table of words."""
        return self.llm.model.model  # type: ignore[union-attr]
