"""The slots of one role: how many this gateway holds, and the apparent limit. Pure.

Other gateways may hold slots of the same stage, which only shows in the stage's refusals. After a
refusal, the limit is the number of slots held here, so that a slot released here can be used again
at once. Slots released elsewhere are found by attempts: one extra attempt is allowed after a pause,
which doubles with each refusal. Each success allows another attempt at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
NEWEST_WEIGHT = 0.1
"""Of one measured time in the mean."""


@dataclass(slots=True)
class RoleSlots:
    """`slots` is infinite if it is not reported, and `most` the highest number so far; `limit` is
    lower after a refusal.

    `mean_s` is the mean time for which a slot is held, and `since_sum` the sum of the start times
    of held slots.
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
        """How many may be taken now."""
        return min(self.slots, self.limit) - self.held

    @property
    def limited(self) -> bool:
        """Whether the apparent limit is below the reported number."""
        return self.limit < self.slots

    def resize(self, slots: float) -> None:
        """Set the total number of slots. Additional slots are not limited by earlier refusals."""
        if slots > self.slots:
            limit = min(self.limit, self.slots) + slots - self.slots
            self.limit = limit if limit < slots else math.inf
            self.pause_s = FIRST_PAUSE_S
        self.slots, self.most = slots, max(self.most, slots)

    def take(self, count: int, now: float) -> None:
        """Hold so many more."""
        self.held += count
        self.since_sum += count * now

    def give_back(self, count: int, since: float, now: float, *, measured: bool) -> None:
        """Release slots, each held since the given time."""
        self.held -= count
        self.since_sum = self.since_sum - count * since if self.held else 0.0
        if measured:
            took_s = now - since
            mean_s = took_s if self.mean_s is None else self.mean_s
            self.mean_s = mean_s + NEWEST_WEIGHT * (took_s - mean_s)

    def refuse(self, granted_at: float, now: float) -> None:
        """The stage has refused what was taken then, and is given back already. Those that were
        taken together are refused together, and make one pause."""
        if self.limited and granted_at >= self.refused_at:
            self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)
        self.limit, self.refused_at, self.retry_at = self.held, now, now + self.pause_s

    def try_again(self, wanted: int, now: float) -> None:
        """Let one more try if the pause is over and so many are not free."""
        if self.limited and now >= self.retry_at and self.free < wanted:
            self.limit, self.retry_at = max(self.limit, self.held) + 1, now + self.pause_s

    def succeed(self, count: int) -> None:
        """The stage has given what was taken."""
        self.pause_s = FIRST_PAUSE_S
        self.limit = self.limit + count if self.limit + count < self.slots else math.inf

    def service_s(self, now: float) -> float | None:
        """For how long one is held; None while nothing is known."""
        age_s = now - self.since_sum / self.held if self.held else None
        known = [each for each in (self.mean_s, age_s) if each is not None]
        return max(known, default=None)
