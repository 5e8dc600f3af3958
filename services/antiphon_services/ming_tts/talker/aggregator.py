"""The aggregator: latents of a step, or of a recording, to rows of the language model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from antiphon.pipelines.ming_tts import STEP_LATENTS
from antiphon_services.ming_tts.talker.blocks import RmsTransformer, affine


class Aggregator:
    """Computes with the module `linear_proj_audio` of the checkpoint."""

    def __init__(self, module: Any) -> None:
        self._latents = affine(module.x_embedder)
        self._first: Tensor = module.word_embedder.weight
        self._transformer = RmsTransformer(module, 1 + STEP_LATENTS)

    def rows(self, latents: Tensor) -> Tensor:
        """[n, hidden]: one row for each step's latents [n, 4, 64]."""
        first = self._first.expand(len(latents), 1, -1)
        rows = torch.cat((first, linear(latents, *self._latents)), 1)
        return self._transformer.forward(rows, slice(1))[:, 0]
