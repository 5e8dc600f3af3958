"""Repetition-aware sampling: an id drawn too often recently is excluded and drawn again.

Mirrors `ras_sampling` of CosyVoice. An id is drawn from the most likely ones: those that reach
`top_p` of the probability, at most `top_k`. If it is among the last ids too often, it is excluded,
and another is drawn from the whole distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon_services.lm.sampler import SamplingRows

NUMBERS = 2
"""Uniform numbers per row; the second is for the second draw."""


@dataclass(frozen=True, slots=True)
class RepetitionRule:
    """An id that occurs `repeats` times among the last `window` ids is drawn again."""

    window: int
    repeats: float


def choose_aware(
    logits: Tensor, settings: SamplingRows, numbers: Tensor, recent: Tensor, rule: RepetitionRule
) -> tuple[Tensor, Tensor]:
    """Return an id for each row of `logits` [n, V], int64 [n], and the rows' highest logits [n].

    `numbers` float64 [n, NUMBERS] are in [0, 1). `recent` int64 [n, window] are the last ids, -1 if
    missing. A greedy row takes the most likely id, or the most likely other one. If the highest
    logit is not finite, the id is arbitrary but valid.
    """
    scores = logits.to(torch.float32)
    highest = scores.max(-1, keepdim=True).values
    scores = scores / settings.temperature
    order = _likeliest(scores, min(settings.largest_top_k, scores.shape[-1]))
    largest = scores.gather(1, order[:, :1])
    total = (scores - largest).double().exp().sum(-1, keepdim=True)
    weights = (scores.gather(1, order) - largest).double().exp()
    before = weights.cumsum(-1) - weights
    ranks = torch.arange(order.shape[-1], device=scores.device)
    kept = (before < (1 - settings.tail) * total) & (ranks < settings.top_k) & ~settings.greedy
    kept[:, 0] = True
    ids = order.gather(1, _drawn(weights * kept, numbers[:, :1]))
    repeated = (recent == ids).sum(-1, keepdim=True) >= rule.repeats
    others = scores.scatter(1, ids, -math.inf)
    best, likeliest = others.max(-1, keepdim=True)
    second = _drawn((others - best).double().exp(), numbers[:, 1:])
    second = torch.where(settings.greedy, likeliest, second)
    return torch.where(repeated, second, ids)[:, 0], highest[:, 0]


def _likeliest(scores: Tensor, count: int) -> Tensor:
    """Return the ids of the highest scores float32 [n, V], with ties in order: [n, count].

    `topk` does not order ties, which are common in bfloat16. So its keys are a score's bits
    followed by the id. The bits sort as integers once those of negative numbers are flipped.
    """
    size = scores.shape[-1]
    # -0.0 becomes 0.0.
    bits = (scores + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFF_FFFF)
    places = torch.arange(size - 1, -1, -1, device=scores.device)
    keys = (ordered.to(torch.int64) << 32) | places
    return size - 1 - (keys.topk(count).values & 0xFFFF_FFFF)


def _drawn(weights: Tensor, numbers: Tensor) -> Tensor:
    """Return where numbers [n, 1] fall among the weights [n, V]: [n, 1]."""
    sums = weights.cumsum(-1)
    places = torch.searchsorted(sums, numbers * sums[:, -1:], right=True)
    return places.clamp_(max=weights.shape[-1] - 1)
