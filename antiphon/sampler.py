"""Chooses one id from a row of logits, for every autoregressive part of every stage.

Which ids may be chosen and how likely each is equals the logits processors of
`transformers` 5.19 `generate`, in its order: float32, repetition penalty,
suppressed ids, temperature, top_k, top_p, softmax.

The draw is a function of (seed, step, group) alone: an inverse CDF over a number
from a counter-based hash. There is no generator and so no state: a segment's ids
do not depend on its neighbours in a batch, on the process, or on what was drawn
before, and a rebuilt segment goes on with the same ids.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from antiphon.errors import Internal
from antiphon.sampling import Sampling

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FRACTION_BITS = 52


def choose(
    logits: Tensor,
    sampling: Sampling,
    *,
    step: int,
    group: int = 0,
    history: Tensor | None = None,
    suppressed: Tensor | None = None,
) -> int:
    """The next id for `logits` [V] of any floating dtype.

    `step` counts the choices of a segment and `group` tells choices within one
    step apart. `history` (int64 [n]) are the ids that the repetition penalty
    applies to; ids outside the vocabulary are passed over. `suppressed` (int64
    [m]) are ids that are never chosen. Raises `Internal` when logits are NaN or
    leave nothing to choose from.
    """
    scores = penalise(logits, sampling, history=history, suppressed=suppressed)
    if sampling.greedy:
        best = int(scores.argmax())
        if not math.isfinite(scores[best].item()):
            raise Internal(f"step {step}, group {group}: the logits are not finite")
        return best
    ids, scores = keep_likeliest(scores, sampling)
    total_by_id = scores.softmax(-1).to(torch.float64).cumsum(-1)
    total = total_by_id[-1].item()
    if not total > 0:
        raise Internal(f"step {step}, group {group}: the logits are not finite")
    target = torch.tensor(uniform(sampling.seed, step, group) * total, dtype=torch.float64)
    index = torch.searchsorted(total_by_id, target.to(total_by_id.device), right=True)
    return int(ids[index])


def penalise(
    logits: Tensor, sampling: Sampling, *, history: Tensor | None, suppressed: Tensor | None
) -> Tensor:
    """float32 [V]: repetition penalty, then suppression; what greedy takes the argmax of.

    Mirrors `RepetitionPenaltyLogitsProcessor` and `SuppressTokensLogitsProcessor`.
    """
    scores = logits.to(torch.float32)
    penalty = sampling.repetition_penalty
    if history is not None and len(history) and penalty != 1.0:
        known = history[history < len(scores)]
        repeated = scores[known]
        lowered = torch.where(repeated < 0, repeated * penalty, repeated / penalty)
        scores = scores.scatter(0, known, lowered)
    if suppressed is not None:
        scores = scores.index_fill(0, suppressed, -math.inf)
    return scores


def keep_likeliest(scores: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Ids that may be drawn (int64 [k], ascending) and their scores after temperature.

    Mirrors `TemperatureLogitsWarper`, `TopKLogitsWarper` (ties with the last kept
    id are kept) and `TopPLogitsWarper`, whose sort here runs over what top_k
    left: the ids that it removed have probability zero.
    """
    scores = scores / sampling.temperature
    if 0 < sampling.top_k < len(scores):
        ids = (scores >= scores.topk(sampling.top_k).values[-1]).nonzero()[:, 0]
        scores = scores[ids]
    else:
        ids = torch.arange(len(scores), device=scores.device)
    if sampling.top_p < 1.0:
        ascending, order = scores.sort()
        removed = ascending.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        removed[-1] = False
        kept = order[~removed].sort().values
        ids, scores = ids[kept], scores[kept]
    return ids, scores


def uniform(seed: int, step: int, group: int) -> float:
    """A number in [0, 1), evenly spread over steps and groups; `seed` is 64 bits.

    Output `group` of the SplitMix64 generator that starts at output `step` of the
    one that starts at `seed`. With 52 bits, the product with any sum stays below it.
    """
    word = _split_mix(_split_mix(seed, step), group)
    return float(word >> (64 - _FRACTION_BITS)) * 2.0**-_FRACTION_BITS


def _split_mix(start: int, index: int) -> int:
    """Output number `index` of SplitMix64 from `start`, as a 64-bit word."""
    word = (start + (index + 1) * _GOLDEN) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
