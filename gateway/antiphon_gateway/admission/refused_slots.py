"""Estimate the slots that recently refused requests would have used, by role. Pure.

A refused request holds nothing, and may be repeated at once. Refusals are therefore not added up,
but measured as a rate. By Little's law, the number of used slots is the arrival rate times the time
for which a slot is held. If this time is not known, each request counts as one slot for the whole
window.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

BUCKETS = 30
"""Refusals are counted together that come within this part of the window."""


class RefusedSlots:
    """The refusals of one gateway. `hold_s` returns the mean time for which a slot of a role is
    held."""

    def __init__(self, window_s: float, hold_s: Callable[[str], float | None]) -> None:
        self._window_s = window_s
        self._bucket_s = window_s / BUCKETS
        self._hold_s = hold_s
        # With the number of the bucket, the oldest first; at most BUCKETS + 1.
        self._buckets: deque[tuple[int, Counter[str]]] = deque()

    def add(self, roles: Iterable[str], count: int, now: float) -> None:
        """A request for so many slots of each role was refused."""
        self._expire(now)
        number = int(now // self._bucket_s)
        if not self._buckets or self._buckets[-1][0] != number:
            self._buckets.append((number, Counter()))
        for role in roles:
            self._buckets[-1][1][role] += count

    def by_role(self, now: float) -> dict[str, float]:
        """Return the estimated slots; a role without refusals has no entry."""
        self._expire(now)
        refused: Counter[str] = Counter()
        for _, counts in self._buckets:
            refused.update(counts)
        return {role: count * self._share(role) for role, count in refused.items()}

    def next_expiry(self) -> float | None:
        """When the oldest of them stops counting; None when there are none."""
        return self._end(self._buckets[0][0]) if self._buckets else None

    def _share(self, role: str) -> float:
        """The part of the window for which a refused request would have held its slot."""
        hold_s = self._hold_s(role)
        return 1.0 if hold_s is None else min(hold_s / self._window_s, 1.0)

    def _expire(self, now: float) -> None:
        while self._buckets and self._end(self._buckets[0][0]) <= now:
            self._buckets.popleft()

    def _end(self, number: int) -> float:
        return (number + 1) * self._bucket_s + self._window_s
