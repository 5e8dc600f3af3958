"""Defines the span interface that traced code uses, and a span that records nothing."""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType

Attribute = str | int | float | bool

# A W3C traceparent consists of a version, a trace ID, a span ID and flags. Later versions may
# append more fields.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The identity of a span, as transmitted in a `traceparent`."""

    trace_id: int
    span_id: int
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED * self.sampled:02x}"


def read_traceparent(text: str) -> TraceContext | None:
    """Parse a `traceparent`. Returns None if it is invalid. W3C requires that a new trace is
    started in this case.
    """
    # The maximum length leaves room for fields that later versions may append.
    found = _TRACEPARENT.fullmatch(text[:256])
    if found is None or (text.startswith("00") and found[4]):
        return None
    trace_id, span_id = int(found[1], 16), int(found[2], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(found[3], 16) & _SAMPLED))


class TraceSpan:
    """A timed part of a request. This base class records nothing and is used for requests that
    aren't sampled.

    `traceparent` is passed to other processes so that they can create child spans. It is empty if
    they shouldn't create any. All times are in nanoseconds, as returned by `time.time_ns`. None
    means the current time.
    """

    traceparent: str = ""

    def child(self, name: str, at_ns: int | None = None) -> TraceSpan:
        """Start a child span."""
        return self

    def set(self, **attributes: Attribute) -> None:
        """Set attributes of the span."""

    def end(self, error: BaseException | None = None, at_ns: int | None = None) -> None:
        """End the span, with an error if there was one. Only the first call has an effect."""

    def __enter__(self) -> TraceSpan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(error)


NO_SPAN = TraceSpan()
"""The span that is used for requests that are not sampled."""

current_span: ContextVar[TraceSpan] = ContextVar("current_span", default=NO_SPAN)
"""The span of the request that the current task serves."""

enclosing_span: ContextVar[TraceSpan | None] = ContextVar("enclosing_span", default=None)
"""The parent of the next request in the current task. If it is None, that request starts a new
trace, subject to sampling.
"""

given_traceparent: ContextVar[str] = ContextVar("given_traceparent", default="")
"""The traceparent sent by the client of the current task. For a conversation, the client sends it
when the conversation begins.
"""
