"""Simulated time. Events at the same time run in the order in which they were scheduled."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

Action = Callable[[], None]


class SimulatedClock:
    """Runs actions at their scheduled times. An action can schedule other actions."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._counts_from, self._counts_until = 0.0, math.inf
        self._agenda: list[tuple[float, int, Action]] = []
        self._scheduled = 0

    def count(self, from_s: float, until_s: float) -> None:
        """Limit the measurement of utilization to the time between `from_s` and `until_s`."""
        self._counts_from, self._counts_until = from_s, until_s

    def counted_s(self, since: float, until: float) -> float:
        """Return how much of the time between two points is measured."""
        return max(0.0, min(until, self._counts_until) - max(since, self._counts_from))

    @property
    def counts(self) -> bool:
        """Whether the current time is measured."""
        return self._counts_from <= self.now < self._counts_until

    def at(self, moment: float, action: Action) -> None:
        """Schedule an action. If the time is in the past, the action runs now."""
        self._scheduled += 1
        heapq.heappush(self._agenda, (max(moment, self.now), self._scheduled, action))

    def after(self, delay_s: float, action: Action) -> None:
        """Schedule an action after a delay."""
        self.at(self.now + delay_s, action)

    def run(self, until: float = math.inf) -> None:
        """Run all actions that are due up to the given time."""
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, action = heapq.heappop(self._agenda)
            self.events += 1
            action()
