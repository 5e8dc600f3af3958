"""Trace spans for the segments of one session on this stage.

All times are taken from the segment's report, so nothing needs to be recorded while the segment is
running.
"""

from __future__ import annotations

import time

from antiphon.errors import AntiphonError
from antiphon.runtime.session.instructions import End, Report, SegmentRefused
from antiphon.tracing.span import NO_SPAN
from antiphon.tracing.tracing import Tracing
from antiphon.v1 import session_pb2


class SessionTrace:
    """The spans of a single session. Call `end` when its stream has ended."""

    def __init__(self, tracing: Tracing, role: str) -> None:
        self._tracing = tracing
        self._role = role
        self._span = NO_SPAN
        self._opened_ns = 0

    def opened(self, message: session_pb2.SegmentOpen) -> None:
        """Start a span for a segment that the client requested."""
        if message.traceparent:
            self._span = self._tracing.part(self._role, message.traceparent)
            self._opened_ns = time.time_ns()

    def told(self, reply: object) -> None:
        """Record a reply to the client. Most types of replies have no effect."""
        if self._span is NO_SPAN:
            return
        match reply:
            case Report():
                self._record(reply)
            case SegmentRefused() | End() if reply.error is not None:
                self.end(reply.error)

    def end(self, error: AntiphonError | None = None) -> None:
        """End the span of the current segment, if there is one."""
        self._span.end(error)
        self._span = NO_SPAN

    def _record(self, report: Report) -> None:
        """Record a completed segment as three spans, which end at the first input, the first output
        and the last output.
        """
        parts = {
            "queue": (0.0, report.first_input_s),
            "prefill": (report.first_input_s, report.first_output_s),
            "output": (report.first_output_s, report.last_output_s),
        }
        for name, (begun_s, ended_s) in parts.items():
            if ended_s > begun_s or (name == "queue" and ended_s):
                part = self._span.child(name, self._at_ns(begun_s))
                part.end(at_ns=self._at_ns(ended_s))
        self._span.set(
            finish_reason=report.finish_reason.value,
            input_positions=report.input_positions,
            input_cached_positions=report.input_cached_positions,
            output_positions=report.output_positions,
            busy_s=report.busy_s,
        )
        self.end()

    def _at_ns(self, since_open_s: float) -> int:
        return self._opened_ns + round(since_open_s * 1e9)
