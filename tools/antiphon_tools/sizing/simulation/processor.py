"""Simulates shared cores, and threads that process tasks one at a time.

Cores are shared in the same way as on Linux. A task can use at most one core. If there aren't
enough cores, CPU time is split by weight, and each niceness level changes the weight by a factor of
1.25.
"""

from __future__ import annotations

import math
from collections import deque

from antiphon_tools.sizing.simulation.clock import Action, SimulatedClock

WEIGHT_PER_NICE = 1.25
# In seconds. A task whose remaining work is below this value is complete, despite rounding errors.
_DONE_S = 1e-12


class SharedCores:
    """Cores that all tasks share. If the number is infinite, each task has its own core."""

    def __init__(self, clock: SimulatedClock, cores: float = math.inf) -> None:
        self.clock = clock
        self._cores = cores
        self._jobs: list[CoreJob] = []
        self._since = 0.0
        self._version = 0

    def work(self, seconds: float, done: Action, nice: int = 0) -> None:
        """Perform work that takes `seconds` on one core and call `done` afterwards."""
        if math.isinf(self._cores):
            self.clock.after(seconds, done)
            return
        self._advance()
        self._jobs.append(CoreJob(seconds, WEIGHT_PER_NICE**-nice, done))
        self._share()

    def _advance(self) -> None:
        passed_s, self._since = self.clock.now - self._since, self.clock.now
        for job in self._jobs:
            job.left_s -= job.speed * passed_s

    def _share(self) -> None:
        """Set the speed of each task and schedule an update for the first completion."""
        left, weights = self._cores, sum(job.weight for job in self._jobs)
        # Start with the highest weight. If a task gets a full core, the remaining tasks share the
        # rest.
        for job in sorted(self._jobs, key=lambda each: -each.weight):
            job.speed = min(1.0, left * job.weight / weights) if weights > 0 else 1.0
            left, weights = left - job.speed, weights - job.weight
        self._version += 1
        version = self._version
        if self._jobs:
            in_s = min(job.left_s / job.speed for job in self._jobs)
            self.clock.after(max(in_s, 0.0), lambda: self._look(version))

    def _look(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        done = [job for job in self._jobs if job.left_s <= _DONE_S]
        self._jobs = [job for job in self._jobs if job.left_s > _DONE_S]
        self._share()
        for job in done:
            job.done()


class CoreJob:
    """The remaining work of a task and its current speed."""

    __slots__ = ("done", "left_s", "speed", "weight")

    def __init__(self, left_s: float, weight: float, done: Action) -> None:
        self.left_s, self.weight, self.done = left_s, weight, done
        self.speed = 0.0


class SerialThread:
    """Processes tasks sequentially, in the order of their arrival.

    `busy_s` is the measured work in core seconds.
    """

    def __init__(self, cores: SharedCores, nice: int = 0) -> None:
        self._cores = cores
        self._clock = cores.clock
        self._nice = nice
        self._waiting: deque[tuple[float, Action]] = deque()
        self._busy = False
        self.busy_s = 0.0

    def work(self, seconds: float, done: Action) -> None:
        """Perform work after all previous work and call `done` afterwards."""
        self._waiting.append((seconds, done))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        if not self._waiting:
            self._busy = False
            return
        self._busy = True
        seconds, done = self._waiting.popleft()
        since = self._clock.now

        def ended() -> None:
            now = self._clock.now
            if now > since:
                self.busy_s += seconds * self._clock.counted_s(since, now) / (now - since)
            done()
            self._next()

        self._cores.work(seconds, ended, self._nice)
