"""Repetition-aware sampling. If an ID has recently been drawn too often, a different ID is drawn.

This mirrors CosyVoice's `ras_sampling`. First, an ID is drawn from the most likely IDs, which are
limited to a total probability of `top_p` and to `top_k` candidates. If this ID occurs too often
among the most recent IDs, it is excluded, and another ID is drawn from the whole distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon_services.lm.sampler import SamplingRows

NUMBERS = 2
"""The number of uniform random numbers per row. The second number is used if an ID has to be drawn
again.
"""


@dataclass(frozen=True, slots=True)
class RepetitionRule:
    """If the drawn ID occurs `repeats` times among the last `window` IDs, a different ID is
    drawn.
    """

    window: int
    repeats: float


def choose_aware(
    logits: Tensor, settings: SamplingRows, numbers: Tensor, recent: Tensor, rule: RepetitionRule
) -> tuple[Tensor, Tensor]:
    """Return an ID for each row of `logits` [n, V], together with the row's highest logit.

    `numbers` (float64 [n, NUMBERS]) contains random numbers in [0, 1). `recent` (int64 [n, window])
    contains the most recent IDs, or -1 if there are fewer than `window`. A greedy row chooses the
    most likely ID, or the next most likely one if that ID is excluded. If the highest logit is not
    finite, the returned ID is arbitrary but valid.
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
    """Return the IDs [n, count] with the highest scores (float32 [n, V]). IDs with equal scores are
    in ascending order.

    Equal scores are common in bfloat16, and `topk` returns them in any order. Its keys therefore
    consist of the bits of a score followed by the ID. These bits can be sorted as integers once the
    bits of negative numbers have been flipped.
    """
    size = scores.shape[-1]
    # Convert -0.0 to 0.0.
    bits = (scores + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFF_FFFF)
    places = torch.arange(size - 1, -1, -1, device=scores.device)
    keys = (ordered.to(torch.int64) << 32) | places
    return size - 1 - (keys.topk(count).values & 0xFFFF_FFFF)


def _drawn(weights: Tensor, numbers: Tensor) -> Tensor:
    """Return the indices [n, 1] at which the numbers [n, 1] fall within the cumulative weights of
    [n, V].
    """
    sums = weights.cumsum(-1)
    places = torch.searchsorted(sums, numbers * sums[:, -1:], right=True)
    return places.clamp_(max=weights.shape[-1] - 1)
