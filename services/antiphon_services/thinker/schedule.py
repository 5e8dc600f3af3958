"""Divides the prompt rows of a step among the prompts that are waiting."""

from __future__ import annotations

from collections.abc import Sequence


def prefill_shares(remaining: Sequence[int], budget: int) -> list[int]:
    """Return the number of rows for each prompt in this step, given the remaining rows of all
    prompts. The oldest prompt is first.

    The total is at most `budget`. A quarter of it is reserved for the oldest prompt, which prevents
    starvation. The remaining rows are assigned to the shortest prompts first, so that a long prompt
    does not delay a short one.
    """
    shares = [0] * len(remaining)
    shortest_first = sorted(range(len(remaining)), key=lambda index: remaining[index])
    most = [(0, -(-budget // 4))] if remaining else []
    for index, limit in [*most, *((index, budget) for index in shortest_first)]:
        rows = min(remaining[index] - shares[index], limit, budget)
        shares[index] += rows
        budget -= rows
    return shares
