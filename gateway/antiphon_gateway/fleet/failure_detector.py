"""Decides when a stage is considered lost. This module performs no I/O and reads no clock.

The gateway probes every stage. Messages that a stage sends on its own, such as output, progress and
load reports, are signs of life, just like an answer to a probe. A stage sends neither messages nor
answers if its event loop or interpreter is blocked, or if its process has been stopped. Only
silence counts against a stage, and only while the gateway's own process was being scheduled
(`antiphon.deadlines.awake_deadline`). If the host is short of CPU almost all of the time, its
stages may not be scheduled for several seconds. Time under such pressure counts for only a fifth.

Load reports are sent on a separate stream, so they don't prove that messages reach the stage. They
excuse a missing answer only for `REPORTS_EXCUSE` times the probe timeout. Output excuses a missing
answer for as long as it continues, because the credit for it is granted on the same connection.
"""

from __future__ import annotations

from enum import Enum, auto

from antiphon.deadlines.awake_deadline import AwakeDeadline

MISSES_TO_LOSE = 2
REPORTS_EXCUSE = 4
IDLE_S = 1.1
"""A stage without sessions reports its load once per second. If no report has arrived for this many
seconds, it is probed.
"""
STARVED_PRESSURE = 0.9
STARVED_WEIGHT = 0.2


class Liveness(Enum):
    """What the detector has concluded about a stage."""

    ALIVE = auto()
    SUSPECTED = auto()
    """The stage receives no new requests. It is probed once more, in case the last probe
    was lost.
    """
    LOST = auto()
    """The sessions on the stage are terminated."""


class ProbeSchedule:
    """Decides when to probe a stage.

    A probe is due if the stage hasn't reported its load for `interval_s` seconds or if it isn't
    ready. Otherwise, the stage is probed once in the period for which reports excuse a missing
    answer.

    A stage without sessions reports less often, so it is probed later. To detect its failures just
    as quickly, any silence beyond `interval_s` counts as if the probe had already been sent.
    """

    def __init__(self, interval_s: float, timeout_s: float) -> None:
        self._interval_s = interval_s
        self._idle_interval_s = max(interval_s, min(IDLE_S, interval_s + timeout_s / 2))
        self._confirm_s = REPORTS_EXCUSE * timeout_s
        self._confirmed_at: float | None = None

    def confirmed(self, now: float) -> None:
        """Record that a probe was answered and that the answer agrees with the stage's health
        stream.
        """
        self._confirmed_at = now

    def left_s(self, now: float, reported_at: float, *, ready: bool, idle: bool = False) -> float:
        """Return how many seconds remain until the next decision. The result is 0 if a probe is
        due.

        `reported_at` is the time at which the latest load report was read. `idle` states whether
        the stage has no sessions.
        """
        is_confirmed = self._confirmed_at is not None and now < self._confirmed_at + self._confirm_s
        interval_s = self._idle_interval_s if idle else self._interval_s
        return max(0.0, reported_at + interval_s - now) if ready and is_confirmed else 0.0

    def overdue_s(self, now: float, reported_at: float) -> float:
        """Return how many seconds of silence count against the stage if a probe is sent now. The
        maximum is the extra delay that applies to the probe of an idle stage.
        """
        most_s = self._idle_interval_s - self._interval_s
        return min(most_s, max(0.0, now - reported_at - self._interval_s))


class FailureDetector:
    """Judges a single stage by its probes and its other signs of life.

    Call `sent`, `answered` or `failed` when a probe is sent, answered or fails, and `waited` after
    each part of the wait for an answer. `timeout_s` is the number of seconds for which a stage may
    be silent while a probe is outstanding.
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
        """The number of consecutive probes for which there was neither an answer nor any other sign
        of life.
        """
        return self._misses

    def sent(self, overdue_s: float = 0.0) -> None:
        """Record that a probe was sent. This restarts the timeout, reduced by the `overdue_s`
        seconds of silence before the probe.
        """
        self._silence.restart()
        self._silence.waited(overdue_s, 0.0)

    def answered(self) -> None:
        """Record that the stage has answered a probe or that the connection to it is new."""
        self._misses = 0
        self._unanswered.restart()

    def failed(self) -> Liveness:
        """Record that a probe ended with an error and return the verdict."""
        self._misses += 1
        return Liveness.LOST if self._misses >= MISSES_TO_LOSE else Liveness.SUSPECTED

    def waited(
        self, slice_s: float, late_s: float, *, pressure: float, output: bool, reported: bool
    ) -> Liveness:
        """Record that part of the wait for an answer is over and return the verdict.

        The wait should have lasted `slice_s` seconds and ended `late_s` seconds late. `pressure` is
        the fraction of this time during which a thread on this host was waiting for a core.
        `output` and `reported` state whether the stage sent session output or a load report in that
        time.
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
