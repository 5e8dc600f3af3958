"""Tracks how many slots of one role this gateway uses and how many appear to be available to it.
This module performs no I/O.

Other gateways may use slots of the same stage, which this gateway only notices when the stage
refuses a request. After a refusal, the limit is the number of slots that this gateway currently
uses. This means that a slot it releases can be reused immediately, while slots that other gateways
release have to be discovered by trying. One additional attempt is allowed after a pause, which
doubles with each refusal. If an attempt succeeds, the next one is allowed immediately.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
NEWEST_WEIGHT = 0.1
"""The weight of the latest measurement when the mean is updated."""


@dataclass(slots=True)
class RoleSlots:
    """The slots of a role.

    `slots` is infinite if the stage doesn't report a number. `most` is the highest value of `slots`
    so far. `limit` is lowered by refusals. `mean_s` is the mean time in seconds for which a slot is
    used. `since_sum` is the sum of the times at which the slots in use were taken.
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
        """The number of slots that can be taken now."""
        return min(self.slots, self.limit) - self.held

    @property
    def limited(self) -> bool:
        """Whether fewer slots appear to be available than the stage reports."""
        return self.limit < self.slots

    def resize(self, slots: float) -> None:
        """Set the total number of slots. If the total increases, earlier refusals don't apply to
        the additional slots.
        """
        if slots > self.slots:
            limit = min(self.limit, self.slots) + slots - self.slots
            self.limit = limit if limit < slots else math.inf
            self.pause_s = FIRST_PAUSE_S
        self.slots, self.most = slots, max(self.most, slots)

    def take(self, count: int, now: float) -> None:
        """Take this many slots."""
        self.held += count
        self.since_sum += count * now

    def give_back(self, count: int, since: float, now: float, *, measured: bool) -> None:
        """Release slots that were taken at the given time."""
        self.held -= count
        self.since_sum = self.since_sum - count * since if self.held else 0.0
        if measured:
            took_s = now - since
            mean_s = took_s if self.mean_s is None else self.mean_s
            self.mean_s = mean_s + NEWEST_WEIGHT * (took_s - mean_s)

    def refuse(self, granted_at: float, now: float) -> None:
        """Record that the stage refused slots that were taken at the given time. They have already
        been released.

        Slots that were taken together are refused together and cause only one pause.
        """
        if self.limited and granted_at >= self.refused_at:
            self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)
        self.limit, self.refused_at, self.retry_at = self.held, now, now + self.pause_s

    def try_again(self, wanted: int, now: float) -> None:
        """If the pause is over and there aren't enough free slots, allow one more attempt."""
        if self.limited and now >= self.retry_at and self.free < wanted:
            self.limit, self.retry_at = max(self.limit, self.held) + 1, now + self.pause_s

    def succeed(self, count: int) -> None:
        """Record that the stage has granted the slots."""
        self.pause_s = FIRST_PAUSE_S
        self.limit = self.limit + count if self.limit + count < self.slots else math.inf

    def service_s(self, now: float) -> float | None:
        """Return the mean time in seconds for which a slot is used, or None if it isn't
        known yet.
        """
        age_s = now - self.since_sum / self.held if self.held else None
        known = [each for each in (self.mean_s, age_s) if each is not None]
        return max(known, default=None)
