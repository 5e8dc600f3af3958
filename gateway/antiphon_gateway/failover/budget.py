"""How many answers may be continued on other replicas. Pure."""

from __future__ import annotations


class FailoverBudget:
    """Of one gateway. What goes wrong everywhere must not be asked of every replica in turn.

    `per_minute` answers may be continued at once, and as many in each minute after.
    """

    def __init__(self, *, per_minute: int) -> None:
        self._per_minute = per_minute
        self._left = float(per_minute)
        self._at = 0.0

    def spend(self, now: float) -> bool:
        """Whether one more may be continued; `now` in seconds."""
        refilled = self._left + (now - self._at) * self._per_minute / 60
        self._left, self._at = min(refilled, float(self._per_minute)), now
        if self._left < 1:
            return False
        self._left -= 1
        return True
