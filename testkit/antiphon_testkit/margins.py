"""How narrow a greedy choice of a Hugging Face run may be, and how narrow one was."""

from __future__ import annotations

import math

import torch
from transformers import LogitsProcessor

MIN_MARGIN = 1e-4
"""Two correct implementations differ by rounding: a run with a narrower choice proves nothing."""

LOGPROB_TOLERANCE = 4e-6
"""How close log probabilities must be, in parts of the run's largest logit.

The reference's own, from one forward over prompt and reply or from one for each id, differ
by 3e-6 of it on tiny checkpoints: float32 holds logits of such weights no closer.
"""


class LogitGap(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Records the narrowest gap and the last draw; runs after all other processors."""

    def __init__(self) -> None:
        self.smallest = math.inf
        self.last_drawn = -1

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Record scores [1, vocabulary] and pass them on."""
        self.record(scores)
        return scores

    def record(self, scores: torch.Tensor) -> None:
        """Take note of scores [1, vocabulary]."""
        top = scores[0].topk(2)
        self.smallest = min(self.smallest, float(top.values[0] - top.values[1]))
        self.last_drawn = int(top.indices[0])
