"""A deadline in time during which the process that waits has run.

A wall clock goes on while a process is starved, stopped or paused with its machine. What the peer
answered meanwhile lies unread in the socket, so a deadline on that clock blames the peer for the
waiter's own absence. Here the waiter waits in slices and reports how late each one ended. A slice
that ended on time counts in full, and one that ended late counts less by that much. So the last
slice before the end was a punctual one, in which an answer that had come would have been read.

The idea is Lifeguard's local health (https://arxiv.org/abs/1707.00788): a failure detector doubts
itself before it doubts others.
"""

from __future__ import annotations

SLICE_S = 0.1
ON_TIME_S = 0.05
"""How much later than it was due a slice of a running process may end."""


class AwakeDeadline:
    """`budget_s` seconds of awake time. Pure: the owner has the timer.

    Wait for `next_slice_s`, and report with `waited` how late that ended.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._left_s = budget_s
        self._discounted = False

    @property
    def next_slice_s(self) -> float:
        """How long to wait before the next report. After one that did not count in full it is a
        whole slice."""
        return SLICE_S if self._discounted else min(self._left_s, SLICE_S)

    @property
    def passed(self) -> bool:
        """Whether the whole budget is spent."""
        return self._left_s <= 0

    def restart(self) -> None:
        """Begin again with the whole budget."""
        self._left_s = self._budget_s

    def waited(self, slice_s: float, late_s: float, weight: float = 1.0) -> None:
        """A slice of `slice_s` has ended, `late_s` after it was due. It counts `weight` times."""
        was_late = late_s > ON_TIME_S
        counted_s = slice_s - late_s if was_late else slice_s + late_s
        self._discounted = was_late or weight < 1
        self._left_s = max(0.0, self._left_s - weight * max(0.0, counted_s))
