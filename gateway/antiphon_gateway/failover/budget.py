"""Limits how many answers can be continued on other replicas. This module performs no I/O."""

from __future__ import annotations


class FailoverBudget:
    """The failover limit of a gateway. Without it, a request that makes replicas fail would be
    tried on every one of them.

    Up to `per_minute` answers can be continued right away, and the same number again in every
    minute that follows.
    """

    def __init__(self, *, per_minute: int) -> None:
        self._per_minute = per_minute
        self._left = float(per_minute)
        self._at = 0.0

    def spend(self, now: float) -> bool:
        """Return whether another answer can be continued. If so, it is counted. `now` is in
        seconds.
        """
        refilled = self._left + (now - self._at) * self._per_minute / 60
        self._left, self._at = min(refilled, float(self._per_minute)), now
        if self._left < 1:
            return False
        self._left -= 1
        return True
