"""The residual codes of a frame: the code predictor and its tables.

Mirrors `Qwen3OmniMoeTalkerForConditionalGeneration.prepare_inputs_for_generation`
and the code predictor's `generate`: the sequence starts with the talker's last
hidden state (after its final norm) and the embedding of the first code, then one
position per drawn code; each group has its own head and its own table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from antiphon.sampler import choose
from antiphon.sampling import Sampling
from services.talker.decoder import Decoder, KeyValues

# Literals of `prepare_inputs_for_generation`; the temperature is `generate`'s default.
PREDICTOR_TOP_K = 50
PREDICTOR_TOP_P = 0.8
PREDICTOR_TEMPERATURE = 1.0


@dataclass(frozen=True, slots=True)
class Frame:
    """`codes` of all groups, and the sum of their embeddings [1, hidden]."""

    codes: tuple[int, ...]
    embedding: Tensor


def predictor_sampling(talker: Sampling) -> Sampling:
    """The code predictor's settings: greedy exactly when the talker is, and its seed."""
    return Sampling(
        temperature=0.0 if talker.greedy else PREDICTOR_TEMPERATURE,
        top_k=PREDICTOR_TOP_K,
        top_p=PREDICTOR_TOP_P,
        repetition_penalty=1.0,
        seed=talker.seed,
        max_tokens=talker.max_tokens,
    )


class CodePredictor:
    """Draws groups 1..G-1. `module` is HF's code predictor for conditional generation."""

    def __init__(self, module: Any) -> None:
        self._heads = tuple(module.lm_head)
        self._tables = tuple(module.model.codec_embedding)
        self.groups = len(self._heads) + 1
        self._decoder = Decoder(module.model, max_positions=self.groups)
        self._cache = KeyValues(self._decoder.shape, capacity=self.groups)

    def frame(
        self, hidden: Tensor, code: int, embedding: Tensor, sampling: Sampling, step: int
    ) -> Frame:
        """The frame that starts with `code`, whose embedding is [1, hidden].

        `hidden` [1, hidden] is the talker's last state, `sampling` the predictor's,
        `step` the index of the frame.
        """
        codes, embeddings = [code], [embedding]
        self._cache.length = 0
        rows = torch.cat((hidden, embedding))
        for group, (head, table) in enumerate(zip(self._heads, self._tables, strict=True), 1):
            state = self._decoder.forward(rows, self._cache)[-1]
            drawn = choose(head(state), sampling, step=step, group=group)
            rows = table.weight[drawn, None]
            codes.append(drawn)
            embeddings.append(rows)
        return Frame(tuple(codes), torch.cat(embeddings).sum(0, keepdim=True))
