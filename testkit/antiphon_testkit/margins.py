"""Measures how close the greedy choices of a Hugging Face run were, and defines how close they may
be.
"""

from __future__ import annotations

import math

import torch
from transformers import LogitsProcessor

MIN_MARGIN = 1e-4
"""The minimum margin of a greedy choice. Two correct implementations differ because of rounding, so
a run with a smaller margin doesn't prove anything.
"""

LOGPROB_TOLERANCE = 4e-6
"""The maximum difference between log probabilities, relative to the run's largest logit.

For tiny checkpoints, the reference itself differs by 3e-6 between a single forward pass over prompt
and reply and one forward pass per ID, because float32 can't represent the logits of such weights
more precisely.
"""


class LogitGap(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Records the smallest gap and the last draw. It must run after all other processors."""

    def __init__(self) -> None:
        self.smallest = math.inf
        self.last_drawn = -1

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Record scores [1, vocabulary], and return them unchanged."""
        self.record(scores)
        return scores

    def record(self, scores: torch.Tensor) -> None:
        """Record scores [1, vocabulary]."""
        top = scores[0].topk(2)
        self.smallest = min(self.smallest, float(top.values[0] - top.values[1]))
        self.last_drawn = int(top.indices[0])
