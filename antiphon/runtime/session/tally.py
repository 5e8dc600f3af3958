"""The counters of a stage since its start."""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from antiphon.errors import AntiphonError, ErrorCode

STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
STEP_SEGMENTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Outcome(enum.Enum):
    """How a segment ended. A segment that was refused was never open."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REFUSED = "refused"


class Histogram:
    """Counts of values by upper bound. The last element of `counts` is for values above all
    bounds.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Add a value to `total` and count it in the matching bucket."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Stalls:
    """The number and duration of waits for credit on each output edge. Waits that are still in
    progress are included.

    `now` is the time of the latest fact.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.counts: Counter[str] = Counter()
        self._ended_s: defaultdict[str, float] = defaultdict(float)
        # The waits in progress. Each entry contains their number and the sum of their start times.
        self._waiting: defaultdict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))

    def begin(self, edge: str) -> float:
        """Start a wait. Returns the start time, which has to be passed to `end`."""
        self.counts[edge] += 1
        count, since = self._waiting[edge]
        self._waiting[edge] = count + 1, since + self.now
        return self.now

    def end(self, edge: str, began: float) -> float:
        """End the wait that started at `began` and return the current time."""
        count, since = self._waiting[edge]
        self._waiting[edge] = (count - 1, since - began) if count > 1 else (0, 0.0)
        self._ended_s[edge] += self.now - began
        return self.now

    def seconds(self, edge: str, now: float) -> float:
        """Return the total duration of all waits on an edge up to now."""
        count, since = self._waiting[edge]
        return self._ended_s[edge] + max(0.0, count * now - since)


@dataclass(slots=True)
class Tally:
    """The counters of one stage.

    `segments` counts segments by outcome and error code. The error code is empty if there was no
    error. For each edge, `positions` counts the positions produced by the engine, and `chunks`
    counts the chunks into which they were split. `sessions_refused` counts the sessions that were
    rejected because of `max_sessions`. For each edge to the client, `underruns` counts the chunks
    that arrived after playback had run out, and `underrun_s` is the duration of the resulting
    silence in seconds. See `PlayOut` for how they are measured.
    """

    segments: Counter[tuple[Outcome, str]] = field(default_factory=Counter)
    positions: Counter[str] = field(default_factory=Counter)
    chunks: Counter[str] = field(default_factory=Counter)
    sessions_refused: int = 0
    stalls: Stalls = field(default_factory=Stalls)
    underruns: Counter[str] = field(default_factory=Counter)
    underrun_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    step_seconds: Histogram = field(default_factory=lambda: Histogram(STEP_SECONDS))
    step_segments: Histogram = field(default_factory=lambda: Histogram(STEP_SEGMENTS))

    def ended(self, outcome: Outcome, error: AntiphonError | None = None) -> None:
        """Count a segment that has ended. If the error is a cancellation, the segment counts as
        cancelled rather than failed.
        """
        if error is not None and error.code is ErrorCode.CANCELLED:
            outcome, error = Outcome.CANCELLED, None
        self.segments[outcome, "" if error is None else error.code.value] += 1

    @property
    def refused(self) -> int:
        """The number of sessions and segments that were rejected because the stage was full."""
        full = (Outcome.REFUSED, ErrorCode.RESOURCE_EXHAUSTED.value)
        return self.segments[full] + self.sessions_refused

    def stepped(self, seconds: float, segments: int) -> None:
        """Record an engine round. `segments` is 0 if the round didn't include a step."""
        if segments:
            self.step_seconds.add(seconds)
            self.step_segments.add(segments)
