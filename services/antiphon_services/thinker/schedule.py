"""Distributes a step's prompt rows among the waiting prompts."""

from __future__ import annotations

from collections.abc import Sequence


def prefill_shares(remaining: Sequence[int], budget: int) -> list[int]:
    """Return the number of rows to prefill for each prompt in this step. `remaining` contains the
    number of rows that each prompt still needs, starting with the oldest prompt.

    The total is at most `budget`. A quarter of the budget is reserved for the oldest prompt, so
    that it is never starved. The rest goes to the shortest prompts first, so that a long prompt
    doesn't delay a short one.
    """
    shares = [0] * len(remaining)
    shortest_first = sorted(range(len(remaining)), key=lambda index: remaining[index])
    most = [(0, -(-budget // 4))] if remaining else []
    for index, limit in [*most, *((index, budget) for index in shortest_first)]:
        rows = min(remaining[index] - shares[index], limit, budget)
        shares[index] += rows
        budget -= rows
    return shares
