"""Divides the prompt rows of a step among the waiting prompts."""

from __future__ import annotations

from collections.abc import Sequence


def prefill_shares(remaining: Sequence[int], budget: int) -> list[int]:
    """Return each prompt's rows in this step, given its remaining rows, oldest first.

    At most `budget` in total. A quarter goes to the oldest, which prevents starvation. The rest
    goes to the shortest first, so that a long prompt delays no short one.
    """
    shares = [0] * len(remaining)
    shortest_first = sorted(range(len(remaining)), key=lambda index: remaining[index])
    most = [(0, -(-budget // 4))] if remaining else []
    for index, limit in [*most, *((index, budget) for index in shortest_first)]:
        rows = min(remaining[index] - shares[index], limit, budget)
        shares[index] += rows
        budget -= rows
    return shares
