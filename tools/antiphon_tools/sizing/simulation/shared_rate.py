"""Simulates a replica whose sessions all progress at the same rate, which decreases as their number
grows.

The progress since the start is a single number for all sessions. A session is complete when this
number has grown by the session's positions, so the cost of an event doesn't depend on the number of
sessions. Computing a prompt pauses all sessions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from antiphon_tools.sizing.curve import Curve
from antiphon_tools.sizing.simulation.clock import SimulatedClock

Ended = Callable[[int], None]


class SharedRateReplica:
    """A replica whose sessions progress at the same rate.

    `position_s` is the time per position by number of open sessions. `ended` is called with the
    number of a session when all of its positions have been generated. The session holds its slot
    until `close` is called. `held_s` is the measured time of all held slots, and `busy_s` is the
    measured time with positions or prompts to compute.
    """

    __slots__ = (
        "_begun",
        "_clock",
        "_done",
        "_ended",
        "_position_s",
        "_since",
        "_version",
        "busy_s",
        "held_s",
        "open",
        "prompts_until",
    )  # fmt: skip

    def __init__(self, clock: SimulatedClock, position_s: Curve, ended: Ended) -> None:
        self._clock = clock
        self._position_s = position_s
        self._ended = ended
        self._begun: list[tuple[float, int]] = []
        self._done = 0.0
        self._since = 0.0
        self._version = 0
        self.open = 0
        self.prompts_until = 0.0
        self.held_s = self.busy_s = 0.0

    @property
    def position_s(self) -> float:
        """The current time per position, in seconds."""
        return self._position_s(max(self.open, 1))

    def take(self) -> None:
        """Reserve a slot for a session."""
        self._advance()
        self.open += 1
        self._next()

    def prompt(self, seconds: float) -> float:
        """Process a prompt after all previous prompts. Returns the time when it is complete."""
        self._advance()
        self.prompts_until = max(self.prompts_until, self._clock.now) + seconds
        self._next()
        return self.prompts_until

    def begin(self, number: int, positions: float) -> None:
        """Start to generate the positions of a session."""
        self._advance()
        heapq.heappush(self._begun, (self._done + positions, number))
        self._next()

    def close(self) -> None:
        """Release the slot of a session."""
        self._advance()
        self.open -= 1
        self._next()

    def _advance(self) -> None:
        now = self._clock.now
        if now <= self._since:
            return
        self.held_s += self.open * self._clock.counted_s(self._since, now)
        busy_until = now if self._begun else min(now, self.prompts_until)
        self.busy_s += self._clock.counted_s(self._since, busy_until)
        moved_s = now - min(max(self._since, self.prompts_until), now)
        if self._begun:
            self._done += moved_s / self.position_s
        self._since = now

    def _next(self) -> None:
        """Schedule an update for when the first session completes its positions."""
        self._version += 1
        if not self._begun:
            return
        version, positions = self._version, max(self._begun[0][0] - self._done, 0.0)
        begins_at = max(self._clock.now, self.prompts_until)

        def look() -> None:
            if version == self._version:
                self._look()

        self._clock.at(begins_at + positions * self.position_s, look)

    def _look(self) -> None:
        self._advance()
        target, number = heapq.heappop(self._begun)
        self._done = max(self._done, target)
        self._next()
        self._ended(number)
