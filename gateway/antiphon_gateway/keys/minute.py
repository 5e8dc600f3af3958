"""Sums over the last minute. This module performs no I/O."""

from __future__ import annotations

import math

SECONDS = 60


class LastMinute:
    """Amounts for each of the last sixty seconds. The memory usage is constant."""

    def __init__(self) -> None:
        self._amounts = [0.0] * SECONDS
        self._second = 0

    def add(self, amount: float, now: float) -> None:
        """Add an amount."""
        self._move_to(now)
        self._amounts[self._second % SECONDS] += amount

    def total(self, now: float) -> float:
        """Return the sum over the last minute."""
        self._move_to(now)
        return math.fsum(self._amounts)

    def below_after_s(self, limit: float, now: float) -> float:
        """Return how long it will take until the total is below the limit, provided that nothing is
        added. Returns 0 if it already is.
        """
        total = self.total(now)
        for ago in range(SECONDS):
            if total < limit:
                # A second leaves the window one minute after it began.
                return max(0.0, self._second + ago - now) if ago else 0.0
            total -= self._amounts[(self._second + 1 + ago) % SECONDS]
        return self._second + SECONDS - now

    def _move_to(self, now: float) -> None:
        second = math.floor(now)
        for passed in range(self._second + 1, min(second, self._second + SECONDS) + 1):
            self._amounts[passed % SECONDS] = 0.0
        if second >= self._second + SECONDS:
            self._amounts = [0.0] * SECONDS
        self._second = max(second, self._second)
