"""The slots of one role: how many are held from here, and how many there seem to be. Pure.

Others may hold slots of the same stage, and only its refusals tell. After one it counts as full at
what is held from here, so a slot that is given back here goes on at once. What others give back
shows to who tries: one more may after a pause, which doubles with each refusal. Each that succeeds
lets one more try at once.
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
    """`slots` are infinite where nobody told, `most` are the most that there were; `limit` is less
    once the stage has refused.

    `mean_s` is for how long one is held, and `since_sum` adds up since when each is held now.
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
        """Whether there seem to be fewer than the stage tells."""
        return self.limit < self.slots

    def resize(self, slots: float) -> None:
        """There are so many in all. Those that are new have refused nobody."""
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
        """Hold so many less, of which each was held since then."""
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
