"""Tracks the slots of one role: how many this gateway uses, and how many it can apparently use.
This module performs no I/O.

Other gateways may use slots of the same stage, which only becomes apparent when the stage refuses a
request. After a refusal, the limit is the number of slots that this gateway uses, so a slot that it
releases can be reused immediately. Slots that other gateways release are discovered by trying. One
additional attempt is allowed after a pause, which doubles with each refusal. After a success,
another attempt is allowed immediately.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
NEWEST_WEIGHT = 0.1
"""The weight of the latest measurement in the mean."""


@dataclass(slots=True)
class RoleSlots:
    """The slots of a role.

    `slots` is infinite if the stage does not report it, and `most` is the highest number so far.
    `limit` is reduced by a refusal. `mean_s` is the mean time for which a slot is used. `since_sum`
    is the sum of the start times of all slots in use.
    """

    slots: float = math.inf
    most: float = 0.0
    held: int = 0
    limit: float = math.inf
    pause_s: float = FIRST_PAUSE_S
    retry_at: float = 0.0
    refused_at: float = -math.inf
    mean_s: float | None = None
    since_sum: float = 0.0

    @property
    def free(self) -> float:
        """The number of slots that may be taken now."""
        return min(self.slots, self.limit) - self.held

    @property
    def limited(self) -> bool:
        """Whether the apparent limit is lower than the number that was reported."""
        return self.limit < self.slots

    def resize(self, slots: float) -> None:
        """Set the total number of slots. Earlier refusals do not limit additional slots."""
        if slots > self.slots:
            limit = min(self.limit, self.slots) + slots - self.slots
            self.limit = limit if limit < slots else math.inf
            self.pause_s = FIRST_PAUSE_S
        self.slots, self.most = slots, max(self.most, slots)

    def take(self, count: int, now: float) -> None:
        """Take this number of additional slots."""
        self.held += count
        self.since_sum += count * now

    def give_back(self, count: int, since: float, now: float, *, measured: bool) -> None:
        """Release slots that have been in use since the given time."""
        self.held -= count
        self.since_sum = self.since_sum - count * since if self.held else 0.0
        if measured:
            took_s = now - since
            mean_s = took_s if self.mean_s is None else self.mean_s
            self.mean_s = mean_s + NEWEST_WEIGHT * (took_s - mean_s)

    def refuse(self, granted_at: float, now: float) -> None:
        """Record that the stage refused slots that were taken at the given time. They have already
        been released.

        Slots that were taken together are also refused together, and cause only one pause.
        """
        if self.limited and granted_at >= self.refused_at:
            self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)
        self.limit, self.refused_at, self.retry_at = self.held, now, now + self.pause_s

    def try_again(self, wanted: int, now: float) -> None:
        """Allow one more attempt if the pause has ended and there are not enough free slots."""
        if self.limited and now >= self.retry_at and self.free < wanted:
            self.limit, self.retry_at = max(self.limit, self.held) + 1, now + self.pause_s

    def succeed(self, count: int) -> None:
        """Record that the stage has given the slots."""
        self.pause_s = FIRST_PAUSE_S
        self.limit = self.limit + count if self.limit + count < self.slots else math.inf

    def service_s(self, now: float) -> float | None:
        """Return the mean time for which a slot is used, or None if it is not known yet."""
        age_s = now - self.since_sum / self.held if self.held else None
        known = [each for each in (self.mean_s, age_s) if each is not None]
        return max(known, default=None)
