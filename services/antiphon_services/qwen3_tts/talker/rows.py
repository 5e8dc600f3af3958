"""Computes the talker's input rows from IDs, codes and a speaker vector."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Embedding
from torch.nn.functional import embedding

from antiphon.transport.device_edge import on_device
from antiphon_services.lm.tables import project_table
from antiphon_services.qwen3_tts.talker.module import TalkerModule
from antiphon_services.qwen3_tts.talker.prompt import FRAME, SPEAKER, Prompt


class TtsRowTable:
    """The rows of a checkpoint. A text row depends only on its ID, so all text rows are projected
    when the stage is loaded.
    """

    def __init__(self, talker: TalkerModule) -> None:
        self._codes: Tensor = talker.model.codec_embedding.weight
        words: Tensor = talker.model.text_embedding.weight
        self._text = project_table(talker.text_projection, words, like=self._codes)
        # The tables by group. The first group uses the talker's own table.
        later = cast("list[Embedding]", list(talker.code_predictor.model.codec_embedding))
        self._groups: list[Tensor] = [self._codes, *(each.weight for each in later)]

    def text(self, ids: Tensor) -> Tensor:
        """Return the text sides [n, hidden] of IDs (int64 [n])."""
        return embedding(ids, self._text)

    def code(self, codes: Tensor) -> Tensor:
        """Return the embeddings [n, hidden] of first codes (int64 [n])."""
        return embedding(codes, self._codes)

    def prompt(self, prompt: Prompt, start: int, stop: int) -> Tensor:
        """Return the rows from `start` to `stop` of a prompt [stop - start, hidden]."""
        text = self.text(on_device(prompt.text[start:stop], self._codes.device))
        return text + self.codec_side(prompt, start, stop)

    def codec_side(self, prompt: Prompt, start: int, stop: int) -> Tensor:
        """Return the codec sides of these rows [stop - start, hidden]. A row without a codec side
        is zero.
        """
        device, codec = self._codes.device, prompt.codec[start:stop]
        sides = self.code(on_device(codec.clip(min=0), device))
        sides[self._where(codec < 0)] = 0
        if prompt.vector is not None:
            # Make a copy, because the array is read-only and may be shared.
            sides[self._where(codec == SPEAKER)] = torch.tensor(prompt.vector).to(sides)
        if prompt.frames is not None:
            first = int((prompt.codec[:start] == FRAME).sum())
            count = int((codec == FRAME).sum())
            frames = on_device(prompt.frames[first : first + count].astype(np.int64), device)
            embedded = [embedding(frames[:, g], table) for g, table in enumerate(self._groups)]
            sides[self._where(codec == FRAME)] = torch.stack(embedded, 1).sum(1)
        return sides

    def _where(self, chosen: npt.NDArray[np.bool_]) -> Tensor:
        return on_device(chosen.nonzero()[0], self._codes.device)
