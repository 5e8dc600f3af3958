"""How the prompt rows of one step are shared among the prompts that wait."""

from __future__ import annotations

from collections.abc import Sequence


def prefill_shares(remaining: Sequence[int], budget: int) -> list[int]:
    """Rows of each prompt in this step, given the rows that each still has, oldest first.

    At most `budget` together. A quarter goes to the oldest, so that none waits for
    ever; the rest goes to the shortest first, so that a long prompt delays no short one.
    """
    shares = [0] * len(remaining)
    shortest_first = sorted(range(len(remaining)), key=lambda index: remaining[index])
    most = [(0, -(-budget // 4))] if remaining else []
    for index, limit in [*most, *((index, budget) for index in shortest_first)]:
        rows = min(remaining[index] - shares[index], limit, budget)
        shares[index] += rows
        budget -= rows
    return shares
