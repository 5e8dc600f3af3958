"""Simulated time: events in the order of their moments, those of one moment as they were made."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

Action = Callable[[], None]


class SimulatedClock:
    """Runs actions at their moments. An action may schedule others, not in the past."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._counts_from, self._counts_until = 0.0, math.inf
        self._agenda: list[tuple[float, int, Action]] = []
        self._scheduled = 0

    def count(self, from_s: float, until_s: float) -> None:
        """Limit the measurement of utilization to the time between these moments."""
        self._counts_from, self._counts_until = from_s, until_s

    def counted_s(self, since: float, until: float) -> float:
        """So many of the seconds between these moments count."""
        return max(0.0, min(until, self._counts_until) - max(since, self._counts_from))

    @property
    def counts(self) -> bool:
        """Whether this moment counts."""
        return self._counts_from <= self.now < self._counts_until

    def at(self, moment: float, action: Action) -> None:
        """Schedule an action; one for the past runs now."""
        self._scheduled += 1
        heapq.heappush(self._agenda, (max(moment, self.now), self._scheduled, action))

    def after(self, delay_s: float, action: Action) -> None:
        """Schedule an action in so many seconds."""
        self.at(self.now + delay_s, action)

    def run(self, until: float = math.inf) -> None:
        """Run everything that is due until then."""
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, action = heapq.heappop(self._agenda)
            self.events += 1
            action()
