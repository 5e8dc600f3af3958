"""When a stage counts as lost: the rule, without a clock.

The gateway probes each stage. What a stage sends by itself is as good a sign of life as an answer:
its output and its reports of progress, and its load. A hung event loop, a hung interpreter and a
stopped process send none of these. So only silence counts against a stage, and only as much of it
as this process was awake to see (`antiphon.deadlines.awake_deadline`). While threads of this
machine wait for its cores nearly all the time, stages on it may get none for seconds: that time
counts for a fifth.

Load reports are sent on a stream of their own, so they say nothing of a connection that loses what
is sent to the stage. They excuse a missing answer for `REPORTS_EXCUSE` times the probe's timeout.
Output excuses it for as long as it comes, since the gateway grants its credit on that connection.
"""

from __future__ import annotations

from enum import Enum, auto

from antiphon.deadlines.awake_deadline import AwakeDeadline

MISSES_TO_LOSE = 2
REPORTS_EXCUSE = 4
STARVED_PRESSURE = 0.9
STARVED_WEIGHT = 0.2


class Liveness(Enum):
    """What follows for a stage."""

    ALIVE = auto()
    SUSPECTED = auto()
    """It gets no new requests, and another probe shows whether the last one was lost."""
    LOST = auto()
    """What runs on it ends."""


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

    def sent(self) -> None:
        """A probe has been sent: the stage has the whole timeout again."""
        self._silence.restart()

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
        """A slice of the wait for an answer has ended, `late_s` after it was due.

        `pressure` is the share of it in which a thread of this machine waited for a core.
        `output` and `reported` say what the stage has sent in it: of a session, and of its load.
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
