"""The rule that decides when a stage counts as lost, without a clock.

The gateway probes each stage. Messages that a stage sends by itself (output, progress reports and
load reports) are as good a sign of life as an answer: a blocked event loop, a blocked interpreter
or a stopped process send none. Only silence counts against a stage, and only while this process was
scheduled (`antiphon.deadlines.awake_deadline`). If threads of this host wait for cores almost all
of the time, stages on the host may not be scheduled for seconds; such time counts for a fifth.

Load reports have a separate stream, and do not show that messages to the stage arrive. They excuse
a missing answer for `REPORTS_EXCUSE` times the timeout of the probe. Output excuses it while it
continues, because the gateway grants its credit on the same connection.
"""

from __future__ import annotations

from enum import Enum, auto

from antiphon.deadlines.awake_deadline import AwakeDeadline

MISSES_TO_LOSE = 2
REPORTS_EXCUSE = 4
IDLE_S = 1.1
"""A stage without sessions that has reported nothing for so long is probed: it reports once a
second."""
STARVED_PRESSURE = 0.9
STARVED_WEIGHT = 0.2


class Liveness(Enum):
    """What follows for a stage."""

    ALIVE = auto()
    SUSPECTED = auto()
    """It gets no new requests, and another probe shows whether the last one was lost."""
    LOST = auto()
    """What runs on it ends."""


class ProbeSchedule:
    """When a stage is probed: after `interval_s` in which it has reported no load, or is not ready;
    else once in the time for which reports excuse a missing answer.

    A stage without sessions reports less often, so its probe is sent later. The silence beyond
    `interval_s` then counts as if the probe had been open, so it is suspected as soon as any.
    """

    def __init__(self, interval_s: float, timeout_s: float) -> None:
        self._interval_s = interval_s
        self._idle_interval_s = max(interval_s, min(IDLE_S, interval_s + timeout_s / 2))
        self._confirm_s = REPORTS_EXCUSE * timeout_s
        self._confirmed_at: float | None = None

    def confirmed(self, now: float) -> None:
        """A probe was answered, and its answer agrees with what the stage says by itself."""
        self._confirmed_at = now

    def left_s(self, now: float, reported_at: float, *, ready: bool, idle: bool = False) -> float:
        """Seconds until it has to be decided again; 0: a probe is due.

        `reported_at` is when the latest report of its load was read; `idle` is whether the stage
        has no sessions.
        """
        is_confirmed = self._confirmed_at is not None and now < self._confirmed_at + self._confirm_s
        interval_s = self._idle_interval_s if idle else self._interval_s
        return max(0.0, reported_at + interval_s - now) if ready and is_confirmed else 0.0

    def overdue_s(self, now: float, reported_at: float) -> float:
        """Seconds of silence that count before a probe which is sent now: at most those for which
        the probe of an idle stage waits."""
        most_s = self._idle_interval_s - self._interval_s
        return min(most_s, max(0.0, now - reported_at - self._interval_s))


class FailureDetector:
    """Judges one stage by its probes and signs of life.

    The facts: a probe was `sent`, `answered` or has `failed`, and a slice of the wait for an answer
    has passed (`waited`). `timeout_s` is how long a stage may be silent while a probe is open.
    """

    def __init__(self, timeout_s: float) -> None:
        self._silence = AwakeDeadline(timeout_s)
        self._unanswered = AwakeDeadline(REPORTS_EXCUSE * timeout_s)
        self._misses = 0

    @property
    def next_slice_s(self) -> float:
        """How long to wait for an answer before `waited` is called."""
        return self._silence.next_slice_s

    @property
    def misses(self) -> int:
        """Probes in a row without an answer or another sign of life."""
        return self._misses

    def sent(self, overdue_s: float = 0.0) -> None:
        """A probe has been sent: the stage has the whole timeout again, but for `overdue_s` of
        silence before it."""
        self._silence.restart()
        self._silence.waited(overdue_s, 0.0)

    def answered(self) -> None:
        """The stage has answered a probe, or its connection is a new one."""
        self._misses = 0
        self._unanswered.restart()

    def failed(self) -> Liveness:
        """A probe has ended with an error."""
        self._misses += 1
        return Liveness.LOST if self._misses >= MISSES_TO_LOSE else Liveness.SUSPECTED

    def waited(
        self, slice_s: float, late_s: float, *, pressure: float, output: bool, reported: bool
    ) -> Liveness:
        """Record the end of a part of the wait for an answer, `late_s` after it was due.

        `pressure` is the share of it in which a thread of this host waited for a core. `output` and
        `reported` are whether the stage has sent output of a session, or its load, during it.
        """
        weight = STARVED_WEIGHT if pressure >= STARVED_PRESSURE else 1.0
        self._unanswered.waited(slice_s, late_s, weight)
        if output:
            self.answered()
        if output or (reported and not self._unanswered.passed):
            self._misses = 0
            self._silence.restart()
            return Liveness.ALIVE
        self._silence.waited(slice_s, late_s, weight)
        return self.failed() if self._silence.passed else Liveness.ALIVE
