"""A deadline that only counts time during which the waiting process was running.

A wall clock continues while a process is starved of CPU time, stopped, or paused together with its
machine. During this time the peer's answer may already be in the socket, unread. A wall-clock
deadline would then report the peer as unresponsive although the waiting process caused the delay.
For this reason, the process waits in slices, and reports how late each slice ended. A slice that
ended on time counts in full. A slice that ended late counts less, depending on how late it was. As
a result, the last slice before the deadline always ends on time, and an answer would have been read
during it.

The idea comes from Lifeguard's local health (https://arxiv.org/abs/1707.00788): a failure detector
should suspect itself before it suspects its peers.
"""

from __future__ import annotations

SLICE_S = 0.1
ON_TIME_S = 0.05
"""A slice counts as on time if it ends no more than this many seconds late."""


class AwakeDeadline:
    """A deadline after `budget_s` seconds of running time. It does not set a timer itself.

    Wait for `next_slice_s` seconds, and then report with `waited` how late the wait ended.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._left_s = budget_s
        self._discounted = False

    @property
    def next_slice_s(self) -> float:
        """The number of seconds to wait before the next report.

        This is a full slice if the previous one did not count in full.
        """
        return SLICE_S if self._discounted else min(self._left_s, SLICE_S)

    @property
    def passed(self) -> bool:
        """Whether the budget is used up."""
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
