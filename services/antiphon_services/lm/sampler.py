"""Chooses one ID from each row of logits. All autoregressive parts of all stages use this module.

Candidates and their probabilities are the same as with the logits processors that `generate` uses
in `transformers` 5.19. The operations are applied in the same order: conversion to float32,
repetition penalty, suppressed IDs, temperature, top_k, top_p and softmax.

A draw inverts the cumulative distribution at a number that is computed as a hash of (seed, step,
group). The seed is the key for the stage's draws in this answer
(`antiphon.values.sampling.stream_key`). Since there is no random number generator and no state, a
segment's IDs don't depend on the batch, the process or earlier draws, and a restored segment
continues with the same IDs.

`choose` processes a single row of any vocabulary. After top_k, it only has to process the remaining
IDs. `choose_each` processes many rows and never shortens them, so that it never reads from the
device. Both return the same ID, because weights are float64 exponentials and are summed in the
order of IDs. Removed IDs contribute exact zeros to these sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import shake_128

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from antiphon.errors import Internal
from antiphon.transport.device_edge import on_device
from antiphon.values.sampling import KEY_BITS, Sampling

_FRACTION_BITS = 52
_WORD_BYTES = 8
_INPUT_BYTES = KEY_BITS // 8 + 8
_UNLIMITED = 1 << 31
# This makes sure that the most likely ID is always kept.
_LARGEST_TAIL = math.nextafter(1.0, 0.0)
# A CPU only extracts the most likely IDs first if they are at most one in this many.
FEW = 4
# For vocabularies of at least this size, top_p only considers the IDs that top_k leaves, provided
# that every row has a top_k. This takes twice as many operations but avoids sorting the whole
# vocabulary.
WIDE = 1 << 14


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The settings of several rows as columns [n, 1] on one device.

    `temperature` and `penalty` are float32, `top_k` is int64 and never 0, and `greedy` is bool.
    `tail` is float64 and contains the probability that top_p removes, which is below 1. The
    remaining fields summarize all rows, to save work and to avoid reading from the device.
    """

    temperature: Tensor
    penalty: Tensor
    top_k: Tensor
    tail: Tensor
    greedy: Tensor
    all_greedy: bool
    any_greedy: bool
    any_temperature: bool
    any_penalty: bool
    smallest_penalty: float
    any_top_p: bool
    smallest_top_k: int
    largest_top_k: int

    @classmethod
    def of(cls, samplings: Sequence[Sampling], device: torch.device) -> SamplingRows:
        """Convert settings to rows. For greedy rows, the temperature is set to 1."""
        greedy = [each.greedy for each in samplings]
        top_k = [each.top_k or _UNLIMITED for each in samplings]

        # float64 can represent these integers exactly.
        table = [
            [each.temperature or 1.0 for each in samplings],
            [each.repetition_penalty for each in samplings],
            [min(1 - each.top_p, _LARGEST_TAIL) for each in samplings],
            top_k,
            greedy,
        ]
        there = on_device(np.array(table, np.float64), device)[:, :, None]
        temperature, penalty = there[:2].to(torch.float32)
        return cls(
            temperature=temperature,
            penalty=penalty,
            top_k=there[3].to(torch.int64),
            tail=there[2],
            greedy=there[4].to(torch.bool),
            all_greedy=all(greedy),
            any_greedy=any(greedy),
            any_temperature=any(each.temperature not in (0.0, 1.0) for each in samplings),
            any_penalty=any(each.repetition_penalty != 1.0 for each in samplings),
            smallest_penalty=min(each.repetition_penalty for each in samplings),
            any_top_p=any(each.top_p < 1.0 for each in samplings),
            smallest_top_k=min(top_k),
            largest_top_k=max(top_k),
        )

    def with_greedy(
        self, greedy: Tensor, *, any_greedy: bool = True, all_greedy: bool = False
    ) -> SamplingRows:
        """Return the first n rows. Rows for which `greedy` (bool [n, 1]) is true become greedy.

        The default values of the summaries are correct for any combination of rows.
        """
        count = len(greedy)
        return replace(
            self,
            temperature=self.temperature[:count],
            penalty=self.penalty[:count],
            top_k=self.top_k[:count],
            tail=self.tail[:count],
            greedy=greedy,
            any_greedy=any_greedy,
            all_greedy=all_greedy,
        )


def choose(
    logits: Tensor,
    sampling: Sampling,
    *,
    step: int,
    group: int = 0,
    history: Tensor | None = None,
    suppressed: Tensor | None = None,
) -> int:
    """Return the next ID for `logits` [V], which can have any floating-point dtype.

    `step` is the number of this choice within the segment, and `group` distinguishes several
    choices within one step. The repetition penalty applies to the IDs in `history` (int64 [n]). IDs
    outside the vocabulary are ignored. The IDs in `suppressed` (int64 [m]) are never chosen. Raises
    `Internal` if the logits are NaN or leave no ID to choose from.
    """
    scores = penalise(logits, sampling, history=history, suppressed=suppressed)
    if not math.isfinite(scores.max().item()):
        raise Internal(f"step {step}, group {group}: the logits are not finite")
    if sampling.greedy:
        return int(scores.argmax())
    ids, scores = keep_likeliest(scores, sampling)
    total_by_id = _weights(scores, scores.max()).cumsum(-1)
    target = uniform(sampling.seed, step, group) * total_by_id[-1:]
    return int(ids[torch.searchsorted(total_by_id, target, right=True)])


def choose_each(
    logits: Tensor,
    settings: SamplingRows,
    numbers: Tensor,
    *,
    seen: Tensor | None = None,
    suppressed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose an ID for each row of `logits` [n, V]. Returns the IDs (int64 [n]) and the highest
    scores (float32 [n]).

    The scores are computed as in greedy decoding. `numbers` (float64 [n, 1]) contains the result of
    `uniform` for each row. The repetition penalty applies to the IDs that are marked in `seen`
    (bool [n, V]), and the IDs that are marked in `suppressed` (bool [V]) are never chosen. If
    `choose` would raise an error for a row, the row's highest score is not finite, and its ID is
    arbitrary but valid.
    """
    scores = logits.to(torch.float32)
    if seen is not None and settings.any_penalty:
        scores = torch.where(seen, _lowered(scores, settings), scores)
    if suppressed is not None:
        scores = scores.masked_fill(suppressed, -math.inf)
    best, likeliest = scores.max(-1, keepdim=True)
    if settings.all_greedy:
        return likeliest[:, 0], best[:, 0]
    largest = best
    if settings.any_temperature:
        scores, largest = scores / settings.temperature, best / settings.temperature
    few = _few_likeliest(scores, settings)
    if few is not None:
        scores, among = few
    total_by_id = _kept_weights(scores, largest, settings).cumsum(-1)
    ids = torch.searchsorted(total_by_id, numbers * total_by_id[:, -1:], right=True)
    ids = ids.clamp_(max=scores.shape[-1] - 1)
    if few is not None:
        ids = among.gather(1, ids)
    if settings.any_greedy:
        ids = torch.where(settings.greedy, likeliest, ids)
    return ids[:, 0], best[:, 0]


def penalise(
    logits: Tensor, sampling: Sampling, *, history: Tensor | None, suppressed: Tensor | None
) -> Tensor:
    """Return the scores (float32 [V]) after the repetition penalty and suppression. Greedy decoding
    chooses the ID with the highest score.

    This mirrors `RepetitionPenaltyLogitsProcessor` and `SuppressTokensLogitsProcessor`.
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
    """Return the IDs that may be drawn (int64 [k], in ascending order) and their scores after
    applying the temperature.

    This mirrors three logits processors: `TemperatureLogitsWarper`, `TopKLogitsWarper`, which also
    keeps IDs whose score is tied with the last one, and `TopPLogitsWarper`. Unlike in transformers,
    top_p only sorts the IDs that top_k leaves, because removed IDs have a probability of zero.
    """
    scores = scores / sampling.temperature
    if 0 < sampling.top_k < len(scores):
        ids = (scores >= scores.topk(sampling.top_k).values[-1]).nonzero()[:, 0]
        scores = scores[ids]
    else:
        ids = torch.arange(len(scores), device=scores.device)
    if sampling.top_p < 1.0:
        order = scores.argsort(stable=True)
        mass = _weights(scores, scores.max())[order].cumsum(-1)
        removed = mass <= (1 - sampling.top_p) * mass[-1]
        removed[-1] = False
        kept = order[~removed].sort().values
        ids, scores = ids[kept], scores[kept]
    return ids, scores


def uniform(seed: int, step: int, group: int) -> float:
    """Return a number in [0, 1) with 52 bits, so that its product with any sum is less than the
    sum.

    The number is word `group` of the SHAKE128 output for `seed` (128 bits) and `step` (64 bits).
    Draws that differ in any of these three values are independent.
    """
    return float(uniform_each([seed], [step], group + 1)[0, group])


def draw_numbers(
    samplings: Sequence[Sampling], steps: Sequence[int], groups: int
) -> npt.NDArray[np.float64]:
    """Return `uniform_each` [n, groups] for rows with these settings. Greedy rows have the number
    0.
    """
    drawn = [at for at, each in enumerate(samplings) if not each.greedy]
    seeds = [samplings[at].seed for at in drawn]
    if len(drawn) == len(samplings):
        return uniform_each(seeds, steps, groups)
    numbers = np.zeros((len(samplings), groups))
    if drawn:
        numbers[drawn] = uniform_each(seeds, [steps[at] for at in drawn], groups)
    return numbers


def uniform_each(
    seeds: Sequence[int], steps: Sequence[int], groups: int
) -> npt.NDArray[np.float64]:
    """Return `uniform` [n, groups] for each seed and its step, and for all groups starting at 0."""
    size = _WORD_BYTES * groups
    hashed = b"".join(
        [
            shake_128((step << KEY_BITS | seed).to_bytes(_INPUT_BYTES, "little")).digest(size)
            for seed, step in zip(seeds, steps, strict=True)
        ]
    )
    words = np.frombuffer(hashed, "<u8").reshape(len(seeds), groups)
    return (words >> np.uint64(64 - _FRACTION_BITS)).astype(np.float64) * 2.0**-_FRACTION_BITS


def _lowered(scores: Tensor, settings: SamplingRows) -> Tensor:
    """Apply the repetition penalty to scores [n, V]."""
    multiplied, divided = scores * settings.penalty, scores / settings.penalty
    if settings.smallest_penalty >= 1.0:
        # This is equivalent, but takes less than half the time on a CPU.
        return torch.minimum(multiplied, divided)
    return torch.where(scores < 0, multiplied, divided)


def _few_likeliest(scores: Tensor, settings: SamplingRows) -> tuple[Tensor, Tensor] | None:
    """Return the scores [n, k] that remain of [n, V] after applying top_k, in the order of their
    IDs, together with these IDs.

    Returns None if too many scores are left or if other IDs have the same score as the last one.
    Checking for ties requires reading the scores, so the result is also None on a GPU.
    """
    count = settings.largest_top_k
    if scores.device.type != "cpu" or count * FEW > scores.shape[-1]:
        return None
    highest, ids = scores.topk(count + 1)
    last = settings.top_k
    if bool((highest.gather(1, last - 1) == highest.gather(1, last)).any()):
        return None
    ids, order = ids[:, :count].sort()
    return highest.gather(1, order), ids


def _weights(scores: Tensor, largest: Tensor) -> Tensor:
    """Return float64 weights that are proportional to the softmax over the last dimension. The
    largest weight is 1.
    """
    if scores.device.type == "cpu":
        return (scores - largest).double().exp_()
    # This saves an operation: the subtraction is computed in float32, and only the result is
    # converted to float64.
    wide = torch.empty(scores.shape, dtype=torch.float64, device=scores.device)
    return torch.sub(scores, largest, out=wide).exp_()


def _weights_of_few(scores: Tensor, largest: Tensor, settings: SamplingRows) -> Tensor:
    """Implement `_kept_weights` for rows that all have a top_k. This doesn't sort the whole
    vocabulary.

    top_k keeps at most k - 1 IDs whose score is higher than the last one, and every ID whose score
    is tied with the last one. Of the tied IDs, only the count matters: their weights are equal, and
    top_p removes them first, in the order of IDs.
    """
    ranked, ids = scores.topk(settings.largest_top_k)
    last = ranked.gather(1, settings.top_k - 1)
    # The IDs that rank above the last one, in the order used by top_p: by score, and then by ID.
    ids, order = ids.sort()
    ranked, order = ranked.gather(1, order).sort(stable=True)
    ids = ids.gather(1, order)
    above = _weights(ranked, largest).masked_fill_(ranked <= last, 0.0)
    weight, equal = _weights(last, largest), scores == last
    rank = equal.cumsum(-1, dtype=torch.int32)
    below = rank[:, -1:] * weight
    mass = above.cumsum(-1).add_(below)
    removed = settings.tail * mass[:, -1:]
    above.mul_(mass > removed)
    weights = torch.where(equal & (rank * weight > removed), weight, 0.0)
    # The weights of the remaining IDs don't change.
    return weights.scatter_add_(1, ids, above)


def _kept_weights(scores: Tensor, largest: Tensor, settings: SamplingRows) -> Tensor:
    """Return the `_weights` of scores [n, V] after applying the temperature. IDs that top_k or
    top_p removes have a weight of zero.
    """
    size, top_k = scores.shape[-1], settings.top_k
    limited = settings.smallest_top_k < size
    if settings.largest_top_k > size:
        top_k = top_k.clamp(max=size)
    if not settings.any_top_p:
        weights = _weights(scores, largest)
        if limited:
            ranked = scores.topk(min(settings.largest_top_k, size)).values
            weights.masked_fill_(scores < ranked.gather(1, top_k - 1), 0.0)
        return weights
    if size >= WIDE and settings.largest_top_k * FEW <= size:
        return _weights_of_few(scores, largest, settings)
    ascending, order = scores.sort(stable=True)
    weights = _weights(ascending, largest)
    if limited and settings.smallest_top_k == settings.largest_top_k:
        last = size - settings.largest_top_k
        weights.masked_fill_(ascending < ascending[:, last, None], 0.0)
    elif limited:
        weights.masked_fill_(ascending < ascending.gather(1, size - top_k), 0.0)
    mass = weights.cumsum(-1)
    weights.mul_(mass > settings.tail * mass[:, -1:])
    return weights.scatter(1, order, weights)
