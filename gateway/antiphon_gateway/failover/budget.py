"""Limits how many answers may continue on other replicas. This module performs no I/O."""

from __future__ import annotations


class FailoverBudget:
    """The limit of one gateway. If something fails on all replicas, it must not be tried on each of
    them in turn.

    `per_minute` answers may continue immediately, and the same number in each minute after that.
    """

    def __init__(self, *, per_minute: int) -> None:
        self._per_minute = per_minute
        self._left = float(per_minute)
        self._at = 0.0

    def spend(self, now: float) -> bool:
        """Return whether one more answer may continue. `now` is in seconds."""
        refilled = self._left + (now - self._at) * self._per_minute / 60
        self._left, self._at = min(refilled, float(self._per_minute)), now
        if self._left < 1:
            return False
        self._left -= 1
        return True
