"""Decides when a stage counts as lost. This module performs no I/O and reads no clock.

The gateway probes each stage. Messages that a stage sends on its own, such as output, progress and
load reports, count as signs of life just like the answer to a probe. A stage whose event loop or
interpreter is blocked, or whose process is stopped, sends neither. Only silence counts against a
stage, and only while the gateway's own process was scheduled (`antiphon.deadlines.awake_deadline`).
If the host is short of CPU almost all of the time, stages on it may not be scheduled for several
seconds. Time under such pressure only counts for a fifth.

Load reports are sent on a separate stream, so they do not prove that messages reach the stage. They
excuse a missing answer for `REPORTS_EXCUSE` times the probe timeout. Output excuses a missing
answer for as long as it continues, because the credit for it is granted on the same connection.
"""

from __future__ import annotations

from enum import Enum, auto

from antiphon.deadlines.awake_deadline import AwakeDeadline

MISSES_TO_LOSE = 2
REPORTS_EXCUSE = 4
IDLE_S = 1.1
"""A stage without sessions sends a report once per second. It is probed if no report has arrived
for this many seconds.
"""
STARVED_PRESSURE = 0.9
STARVED_WEIGHT = 0.2


class Liveness(Enum):
    """The detector's verdict about a stage."""

    ALIVE = auto()
    SUSPECTED = auto()
    """The stage receives no new requests. Another probe is sent in case the last one was lost."""
    LOST = auto()
    """The sessions on the stage are ended."""


class ProbeSchedule:
    """Determines when to probe a stage.

    A probe is due if the stage has not reported its load for `interval_s`, or if it is not ready.
    Otherwise, it is probed once in the period for which reports excuse a missing answer.

    A stage without sessions reports less often, so its probe is sent later. To detect a failure as
    quickly as for other stages, the silence beyond `interval_s` counts as if the probe had already
    been sent.
    """

    def __init__(self, interval_s: float, timeout_s: float) -> None:
        self._interval_s = interval_s
        self._idle_interval_s = max(interval_s, min(IDLE_S, interval_s + timeout_s / 2))
        self._confirm_s = REPORTS_EXCUSE * timeout_s
        self._confirmed_at: float | None = None

    def confirmed(self, now: float) -> None:
        """Record that a probe was answered, and that the answer matches the stage's health
        stream.
        """
        self._confirmed_at = now

    def left_s(self, now: float, reported_at: float, *, ready: bool, idle: bool = False) -> float:
        """Return the number of seconds until the next decision, or 0 if a probe is due.

        `reported_at` is the time at which the latest load report was read. `idle` states whether
        the stage has no sessions.
        """
        is_confirmed = self._confirmed_at is not None and now < self._confirmed_at + self._confirm_s
        interval_s = self._idle_interval_s if idle else self._interval_s
        return max(0.0, reported_at + interval_s - now) if ready and is_confirmed else 0.0

    def overdue_s(self, now: float, reported_at: float) -> float:
        """Return how many seconds of silence before a probe sent now count against the stage. The
        maximum is the extra time by which the probe of an idle stage is delayed.
        """
        most_s = self._idle_interval_s - self._interval_s
        return min(most_s, max(0.0, now - reported_at - self._interval_s))


class FailureDetector:
    """Judges a single stage by its probes and its other signs of life.

    Call `sent`, `answered` or `failed` when this happens to a probe, and `waited` after each part
    of the wait for an answer. `timeout_s` limits how long a stage may be silent while a probe is
    outstanding.
    """

    def __init__(self, timeout_s: float) -> None:
        self._silence = AwakeDeadline(timeout_s)
        self._unanswered = AwakeDeadline(REPORTS_EXCUSE * timeout_s)
        self._misses = 0

    @property
    def next_slice_s(self) -> float:
        """The number of seconds to wait for an answer before calling `waited`."""
        return self._silence.next_slice_s

    @property
    def misses(self) -> int:
        """The number of consecutive probes without an answer or any other sign of life."""
        return self._misses

    def sent(self, overdue_s: float = 0.0) -> None:
        """Record that a probe was sent. This restarts the timeout, less `overdue_s` seconds of
        silence before the probe.
        """
        self._silence.restart()
        self._silence.waited(overdue_s, 0.0)

    def answered(self) -> None:
        """Record that the stage answered a probe, or that its connection is new."""
        self._misses = 0
        self._unanswered.restart()

    def failed(self) -> Liveness:
        """Record that a probe ended with an error, and return the verdict."""
        self._misses += 1
        return Liveness.LOST if self._misses >= MISSES_TO_LOSE else Liveness.SUSPECTED

    def waited(
        self, slice_s: float, late_s: float, *, pressure: float, output: bool, reported: bool
    ) -> Liveness:
        """Record that part of the wait for an answer has passed, and return the verdict.

        The wait was meant to last `slice_s` and ended `late_s` later. `pressure` is the fraction of
        this time during which a thread on this host was waiting for a core. `output` and `reported`
        state whether the stage sent session output or a load report during it.
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
