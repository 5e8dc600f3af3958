"""The aggregator, which converts the latents of steps or recordings to rows of the language
model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from antiphon.pipelines.ming_tts import STEP_LATENTS
from antiphon_services.ming_tts.talker.blocks import RmsTransformer, affine


class Aggregator:
    """Computes rows with the `linear_proj_audio` module of the checkpoint."""

    def __init__(self, module: Any) -> None:
        self._latents = affine(module.x_embedder)
        self._first: Tensor = module.word_embedder.weight
        self._transformer = RmsTransformer(module, 1 + STEP_LATENTS)

    def rows(self, latents: Tensor) -> Tensor:
        """Return rows of shape [n, hidden], one for each step's latents, which have shape [n, 4,
        64].
        """
        first = self._first.expand(len(latents), 1, -1)
        rows = torch.cat((first, linear(latents, *self._latents)), 1)
        return self._transformer.forward(rows, slice(1))[:, 0]
