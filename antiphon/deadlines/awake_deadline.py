"""A deadline that counts only the time during which the waiting process was running.

A wall clock keeps running while a process is starved of CPU time, stopped, or paused together with
its machine. By the time it runs again, the peer's answer may already be waiting in the socket. A
wall-clock deadline would then blame the peer for a delay that the waiting process itself caused. To
avoid this, the process waits in slices and reports how late each slice ended. A slice that ended on
time counts in full, while a slice that ended late counts less. This ensures that the last slice
before the deadline always ended on time, so an answer would have been read during that slice.

The idea comes from Lifeguard's local health (https://arxiv.org/abs/1707.00788): a failure detector
should suspect itself before it suspects its peers.
"""

from __future__ import annotations

SLICE_S = 0.1
ON_TIME_S = 0.05
"""A slice is considered on time if it ends no more than this many seconds late."""


class AwakeDeadline:
    """A deadline that expires after `budget_s` seconds of running time. It doesn't set a timer.

    To use it, wait for `next_slice_s` seconds and then call `waited` with the number of seconds by
    which the wait ended late.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._left_s = budget_s
        self._discounted = False

    @property
    def next_slice_s(self) -> float:
        """How many seconds to wait before the next report.

        This is a full slice if the previous slice didn't count in full.
        """
        return SLICE_S if self._discounted else min(self._left_s, SLICE_S)

    @property
    def passed(self) -> bool:
        """Whether the budget has been used up."""
        return self._left_s <= 0

    def restart(self) -> None:
        """Reset the budget to its full size."""
        self._left_s = self._budget_s

    def waited(self, slice_s: float, late_s: float, weight: float = 1.0) -> None:
        """Count a slice of `slice_s` seconds that ended `late_s` seconds late, multiplied by
        `weight`.
        """
        was_late = late_s > ON_TIME_S
        counted_s = slice_s - late_s if was_late else slice_s + late_s
        self._discounted = was_late or weight < 1
        self._left_s = max(0.0, self._left_s - weight * max(0.0, counted_s))
