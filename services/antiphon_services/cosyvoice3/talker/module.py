"""The weights of CosyVoice3's talker. Tensors have the same names as in `llm.pt`.

The layers are the same as Qwen2's in transformers. The computations are in `antiphon_services.lm`.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from antiphon.pipelines.cosyvoice3 import SPEECH_IDS
from antiphon_services.lm.qwen2_config import Qwen2Config
from antiphon_services.lm.qwen2_stack import Qwen2Stack

EXTRA_IDS = 200
"""The number of rows that follow the speech tokens in the embedding table and the head. Only a few
of them are used.
"""

UNUSED = ("llm.model.lm_head.weight",)
"""The tensors that are not loaded. They belong to the language model head."""


class SpeechTalkerModule(nn.Module):
    """All weights of `llm.pt` except `UNUSED`.

    `config` is the configuration in `CosyVoice-BlankEN`.
    """

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
        """The decoder layers and the word embeddings. The interface is the one that `lm.decoder`
        requires.
        """
        return self.llm.model.model  # type: ignore[union-attr]
