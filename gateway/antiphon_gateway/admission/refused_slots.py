"""Estimates how many slots of each role would have been used by requests that were recently
refused. This module performs no I/O.

A refused request uses no slot and may be sent again right away. For this reason, refusals are
measured as a rate rather than simply added up. By Little's law, the number of slots in use equals
the arrival rate times the time for which each request uses its slot. If this time isn't known, each
request counts as one slot for the whole window.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

BUCKETS = 30
"""The number of buckets in the window. Refusals in the same bucket are counted together."""


class RefusedSlots:
    """The refusals of one gateway. `hold_s` returns the mean time in seconds for which a slot of a
    role is used.
    """

    def __init__(self, window_s: float, hold_s: Callable[[str], float | None]) -> None:
        self._window_s = window_s
        self._bucket_s = window_s / BUCKETS
        self._hold_s = hold_s
        # Pairs of a bucket number and the counts in that bucket, with the oldest first. There are
        # never more than BUCKETS + 1 of them.
        self._buckets: deque[tuple[int, Counter[str]]] = deque()

    def add(self, roles: Iterable[str], count: int, now: float) -> None:
        """Record that a request for `count` slots of each role was refused."""
        self._expire(now)
        number = int(now // self._bucket_s)
        if not self._buckets or self._buckets[-1][0] != number:
            self._buckets.append((number, Counter()))
        for role in roles:
            self._buckets[-1][1][role] += count

    def by_role(self, now: float) -> dict[str, float]:
        """Return the estimated number of slots. A role without refusals has no entry."""
        self._expire(now)
        refused: Counter[str] = Counter()
        for _, counts in self._buckets:
            refused.update(counts)
        return {role: count * self._share(role) for role, count in refused.items()}

    def next_expiry(self) -> float | None:
        """Return the time at which the oldest refusal stops counting, or None if there are no
        refusals.
        """
        return self._end(self._buckets[0][0]) if self._buckets else None

    def _share(self, role: str) -> float:
        """Return the fraction of the window during which a refused request would have used its
        slot.
        """
        hold_s = self._hold_s(role)
        return 1.0 if hold_s is None else min(hold_s / self._window_s, 1.0)

    def _expire(self, now: float) -> None:
        while self._buckets and self._end(self._buckets[0][0]) <= now:
            self._buckets.popleft()

    def _end(self, number: int) -> float:
        return (number + 1) * self._bucket_s + self._window_s
