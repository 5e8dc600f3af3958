"""Finds the highest load that a service can sustain, by bracketing and bisection.

The load is doubled as long as it can be sustained, or halved as long as it can't, until there is an
upper and a lower limit. Loads between the limits are then tried until the limits are close enough.
On a noisy machine, results may not be monotonic. Even then, the search ends when the limits are
close or after the maximum number of trials, and `best` is always a load that was actually
sustained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Trial:
    """A load that was tried.

    `requests` is the number of requests, and `goodput` is the fraction of them that met all
    objectives.
    """

    load: float
    requests: int
    goodput: float
    carried: bool


@dataclass(slots=True)
class CapacitySearch:
    """A search for the highest load that meets `goodput`.

    To use it, run the load that `next_load` returns and pass the result to `record`, until
    `next_load` returns None. `start` is the first load. The search ends when the lowest failed load
    is at most `1 + resolution` times the highest successful load or after `max_trials` trials. If
    `whole` is true, all loads are integers.
    """

    start: float
    goodput: float = 0.95
    resolution: float = 0.1
    max_trials: int = 12
    whole: bool = False
    trials: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> float | None:
        """The highest sustained load that is below all failed loads, or None if there is none."""
        carried = [each.load for each in self.trials if each.carried]
        ceiling = self._ceiling
        below = [load for load in carried if ceiling is None or load < ceiling]
        return max(below, default=None)

    @property
    def bounded(self) -> bool:
        """Whether a load that cannot be sustained has been found."""
        return self._ceiling is not None

    def next_load(self) -> float | None:
        """Return the next load to try, or None if the search is complete."""
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
        """Record the result of a load."""
        trial = Trial(load, requests, goodput, goodput >= self.goodput)
        self.trials.append(trial)
        return trial

    @property
    def _ceiling(self) -> float | None:
        """The lowest load that could not be sustained."""
        return min((each.load for each in self.trials if not each.carried), default=None)

    def _between(self, best: float, ceiling: float) -> float | None:
        if ceiling <= best * (1 + self.resolution):
            return None
        middle = self._rounded(math.sqrt(best * ceiling))
        return middle if best < middle < ceiling else None

    def _rounded(self, load: float) -> float:
        """Round loads that are counts to integers. The load between 2 and 4, for example, becomes
        3.
        """
        return float(max(1, round(load))) if self.whole else load
