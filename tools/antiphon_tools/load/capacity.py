"""Finds the largest load that a service carries: bracketing, then bisection. Pure.

The load doubles while it is carried, or halves while it is not, until both are known;
then the middle is tried until the two are close. What is not monotonic (a noisy
machine) ends as soon as the limits are close or the trials are used up; `best` is
always a load that was tried and carried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Trial:
    """A load that was tried, how many requests it made, and the part that were good."""

    load: float
    requests: int
    goodput: float
    carried: bool


@dataclass(slots=True)
class CapacitySearch:
    """Search for the largest load that meets `goodput`.

    Run `next_load`, and pass the result to `record`, until `next_load` is None. `start` is the
    first load. The search ends when the smallest failed load is at most `1 + resolution` times the
    largest successful load, or after `max_trials`. `whole` restricts loads to integers.
    """

    start: float
    goodput: float = 0.95
    resolution: float = 0.1
    max_trials: int = 12
    whole: bool = False
    trials: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> float | None:
        """The largest load carried that lies below every load not carried; None: none was."""
        carried = [each.load for each in self.trials if each.carried]
        ceiling = self._ceiling
        below = [load for load in carried if ceiling is None or load < ceiling]
        return max(below, default=None)

    @property
    def bounded(self) -> bool:
        """Whether a load was found that is too much."""
        return self._ceiling is not None

    def next_load(self) -> float | None:
        """The load to try next; None when the search is over."""
        if len(self.trials) >= self.max_trials:
            return None
        if not self.trials:
            return self._rounded(self.start)
        best, ceiling = self.best, self._ceiling
        if best is None and ceiling is not None:
            half = self._rounded(ceiling / 2)
            return half if half < ceiling else None
        if best is not None and ceiling is None:
            return self._rounded(best * 2)
        assert best is not None
        assert ceiling is not None
        return self._between(best, ceiling)

    def record(self, load: float, requests: int, goodput: float) -> Trial:
        """Note how a load went."""
        trial = Trial(load, requests, goodput, goodput >= self.goodput)
        self.trials.append(trial)
        return trial

    @property
    def _ceiling(self) -> float | None:
        """The smallest load that was not carried."""
        return min((each.load for each in self.trials if not each.carried), default=None)

    def _between(self, best: float, ceiling: float) -> float | None:
        if ceiling <= best * (1 + self.resolution):
            return None
        middle = self._rounded(math.sqrt(best * ceiling))
        return middle if best < middle < ceiling else None

    def _rounded(self, load: float) -> float:
        """A whole number where loads are counts; the middle of 2 and 4 is 3."""
        return float(max(1, round(load))) if self.whole else load
