"""A deadline that counts only time during which the waiting process ran.

A wall clock continues while a process is starved, stopped or paused with its machine. The peer's
answer then lies unread in the socket, and a deadline on that clock blames the peer for the waiter's
own absence. So the waiter waits in slices and reports how late each one ended. A slice that ended
on time counts in full. A late one counts less by its lateness. The last slice before the deadline
is therefore a punctual one, in which an answer would have been read.

The idea is Lifeguard's local health (https://arxiv.org/abs/1707.00788): a failure detector should
suspect itself before its peers.
"""

from __future__ import annotations

SLICE_S = 0.1
ON_TIME_S = 0.05
"""Largest lateness of a slice that counts as punctual."""


class AwakeDeadline:
    """A deadline of `budget_s` seconds of awake time. Pure: the owner runs the timer.

    Wait for `next_slice_s`, then report the lateness with `waited`.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._left_s = budget_s
        self._discounted = False

    @property
    def next_slice_s(self) -> float:
        """How long to wait before the next report; a whole slice after one that did not count in
        full."""
        return SLICE_S if self._discounted else min(self._left_s, SLICE_S)

    @property
    def passed(self) -> bool:
        """Whether the budget is used up."""
        return self._left_s <= 0

    def restart(self) -> None:
        """Restore the whole budget."""
        self._left_s = self._budget_s

    def waited(self, slice_s: float, late_s: float, weight: float = 1.0) -> None:
        """Count a slice of `slice_s` that ended `late_s` after it was due, times `weight`."""
        was_late = late_s > ON_TIME_S
        counted_s = slice_s - late_s if was_late else slice_s + late_s
        self._discounted = was_late or weight < 1
        self._left_s = max(0.0, self._left_s - weight * max(0.0, counted_s))
