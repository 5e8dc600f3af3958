"""The timeouts of a session. There are limits for the idle time between segments, for stalled
input, and for the duration of a segment.
"""

from __future__ import annotations

from antiphon.errors import AntiphonError, DeadlineExceeded
from antiphon.pipelines.graph import CLIENT
from antiphon.runtime.session.open_segment import Segment
from antiphon.runtime.session.plan import StagePlan


class SessionClocks:
    """Computes the deadlines of a session.

    `idle_since` is the time at which the last segment ended. If there hasn't been a segment yet, it
    is the time at which the session started.
    """

    def __init__(self, plan: StagePlan, stall_timeout_s: float, now: float) -> None:
        """Start the clocks at `now`. If `stall_timeout_s` is 0, the stage's default is used."""
        self.idle_since = now
        self._role = plan.role
        self._limits = plan.limits
        self._stall_timeout_s = stall_timeout_s or plan.limits.stall_timeout_s
        # While input is live, only the stage that receives the client's audio has a timeout for
        # missing input. The other stages use the idle timeout.
        hears = any(edge.producer == CLIENT for edge in plan.inputs.values())
        limits = plan.limits
        self._listening = (
            (limits.live_input_timeout_s, " (sessions.live_input_timeout_s)")
            if hears
            else (limits.idle_session_timeout_s, " (sessions.idle_session_timeout_s)")
        )

    def next_deadline(self, segment: Segment | None) -> float | None:
        """Return the next time at which output may be due or a timeout may expire. Returns None if
        there is no such time.
        """
        if segment is None:
            return self.idle_since + self._limits.idle_session_timeout_s
        due = segment.next_due
        if not segment.stall_clock_runs:
            return due
        stalls_at = segment.waiting_since + self._patience(segment)[0]
        return stalls_at if due is None else min(due, stalls_at)

    def lateness(self, segment: Segment | None, now: float) -> AntiphonError | None:
        """Return an error if the deadline has expired, input has stalled, or the session has been
        idle for too long. Otherwise, return None.
        """
        if segment is None:
            return self._idleness(now)
        if segment.deadline is not None and now >= segment.deadline:
            return DeadlineExceeded(
                f"{self._role}: the deadline of the segment has passed", stage=self._role
            )
        timeout_s, setting = self._patience(segment)
        if now < segment.waiting_since + timeout_s or not segment.stall_clock_runs:
            return None
        edge = segment.awaited or next(iter(sorted(segment.open_inputs)), "")
        return DeadlineExceeded(
            f"{self._role}: {edge} did not arrive within {timeout_s:g} s{setting}",
            stage=self._role,
            edge=edge,
        )

    def _patience(self, segment: Segment) -> tuple[float, str]:
        """Return how long input may stall, in seconds, and the suffix that identifies the setting
        in error messages.
        """
        return self._listening if segment.listening else (self._stall_timeout_s, "")

    def _idleness(self, now: float) -> AntiphonError | None:
        timeout_s = self._limits.idle_session_timeout_s
        if now < self.idle_since + timeout_s:
            return None
        return DeadlineExceeded(
            f"{self._role}: the session had no open segment for {timeout_s:g} s "
            "(sessions.idle_session_timeout_s)",
            stage=self._role,
        )
