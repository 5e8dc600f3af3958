"""Draws IDs with a single Triton kernel instead of the twenty kernels of `lm.sampler.choose_each`.

Each program processes one row of logits. It sorts keys that order the IDs by score first and by ID
second, so the IDs that survive top_k and top_p are always the tail of the sorted keys. The program
then draws one of the remaining IDs, in the order of IDs. As in the sampler, weights and sums are
float64. Both implementations return the same ID, unless a random number falls between two sums that
differ only in their last digit.

If the environment variable `TRITON_INTERPRET` is set to 1, the kernel runs on a CPU, which is slow.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from antiphon_services.lm.sampler import SamplingRows, choose_each

# A program keeps a whole row. For larger vocabularies, the sampler is used instead.
MOST_IDS = 8192
WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _draw_kernel(
    logits: Any,
    logits_stride: Any,
    penalties: Any,
    temperatures: Any,
    top_ks: Any,
    tails: Any,
    greedies: Any,
    numbers: Any,
    numbers_stride: Any,
    seen: Any,
    seen_stride: Any,
    suppressed: Any,
    suppressed_stride: Any,
    drawn: Any,
    highest: Any,
    size: Any,
    HAS_SEEN: tl.constexpr,
    HAS_SUPPRESSED: tl.constexpr,
    ROOM: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    ids = tl.arange(0, ROOM)
    there = ids < size
    scores = tl.load(logits + row * logits_stride + ids, mask=there, other=0.0).to(tl.float32)
    if HAS_SEEN:
        penalty = tl.load(penalties + row)
        known = tl.load(seen + row * seen_stride + ids, mask=there, other=0) != 0
        lowered = tl.where(scores < 0, scores * penalty, tl.div_rn(scores, penalty))
        scores = tl.where(known, lowered, scores)
    if HAS_SUPPRESSED:
        hidden = tl.load(suppressed + row * suppressed_stride + ids, mask=there, other=0) != 0
        scores = tl.where(hidden, -float("inf"), scores)
    valid = scores == scores
    # Make -0.0 equal to 0.0.
    scores = tl.where(there & valid, scores, -float("inf")) + 0.0
    best = tl.max(scores, axis=0)
    likeliest = tl.min(tl.where((scores == best) & there, ids, ROOM), axis=0)
    broken = tl.max(tl.where(there & (valid == 0), 1, 0), axis=0)
    tl.store(highest + row, tl.where(broken > 0, float("nan"), best))
    # If a row's best score is not finite, return this score so that the caller can detect it. The
    # ID is arbitrary.
    usable = (tl.abs(best) < float("inf")) & (broken == 0)
    scores = tl.where(usable, scores, 0.0)
    best = tl.where(usable, best, 0.0)

    temperature = tl.load(temperatures + row)
    scores = tl.div_rn(scores, temperature)
    largest = tl.div_rn(best, temperature)
    # The bits of floats can be compared as integers, except that negative floats are in reverse
    # order.
    bits = scores.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (ordered.to(tl.int64) << 32) | ids.to(tl.int64)
    # Sort the padding to the front.
    keys = tl.where(there, keys, -(1 << 62) - (1 << 61))
    ascending = tl.sort(keys, dim=0)
    top_k = tl.minimum(tl.load(top_ks + row), size)
    lowest = tl.sum(tl.where(ids == ROOM - top_k, ascending, 0), axis=0)
    # Keep all IDs whose score is tied with the last kept ID.
    lowest = (lowest >> 32) << 32
    back = (ascending >> 32).to(tl.int32)
    back = tl.where(back < 0, back ^ 0x7FFFFFFF, back)
    weights = tl.exp((back.to(tl.float32, bitcast=True) - largest).to(tl.float64))
    in_top_k = (ascending >= lowest) & (ids >= ROOM - size)
    mass = tl.cumsum(tl.where(in_top_k, weights, 0.0), axis=0)
    total = tl.max(mass, axis=0)
    in_top_p = in_top_k & (mass > tl.load(tails + row) * total)
    first = tl.min(tl.where(in_top_p, ascending, 0x7FFFFFFFFFFFFFFF), axis=0)

    kept = there & (keys >= first)
    weights = tl.where(kept, tl.exp((scores - largest).to(tl.float64)), 0.0)
    totals = tl.cumsum(weights, axis=0)
    target = tl.load(numbers + row * numbers_stride) * tl.max(totals, axis=0)
    chosen = tl.sum(tl.where(there & (totals <= target), 1, 0), axis=0)
    chosen = tl.minimum(chosen, size - 1)
    greedy = tl.load(greedies + row) != 0
    chosen = tl.where(greedy, tl.minimum(likeliest, size - 1), chosen)
    tl.store(drawn + row, chosen.to(tl.int64))


def choose_fused(
    logits: Tensor,
    settings: SamplingRows,
    numbers: Tensor,
    *,
    seen: Tensor | None = None,
    suppressed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Like `lm.sampler.choose_each`, but as a single kernel. The vocabulary must not have more than
    `MOST_IDS` IDs.
    """
    count, size = logits.shape
    if size > MOST_IDS:
        return choose_each(logits, settings, numbers, seen=seen, suppressed=suppressed)
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    drawn = torch.empty(count, dtype=torch.int64, device=logits.device)
    highest = torch.empty(count, dtype=torch.float32, device=logits.device)
    room = max(2, 1 << (size - 1).bit_length())
    launch: Any = _draw_kernel[(count,)]
    launch(
        logits,
        logits.stride(0),
        settings.penalty,
        settings.temperature,
        settings.top_k,
        settings.tail,
        settings.greedy,
        numbers,
        numbers.stride(0),
        logits if seen is None else seen,
        0 if seen is None else seen.stride(0),
        logits if suppressed is None else suppressed,
        suppressed.stride(0) if suppressed is not None and suppressed.ndim > 1 else 0,
        drawn,
        highest,
        size,
        HAS_SEEN=seen is not None,
        HAS_SUPPRESSED=suppressed is not None,
        ROOM=room,
        num_warps=WARPS,
    )
    return drawn, highest
