"""The span interface used by traced code, and the span that records nothing."""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType

Attribute = str | int | float | bool

# W3C traceparent: version, trace id, span id and flags. Later versions may append fields.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span's identity, as transmitted in a `traceparent`."""

    trace_id: int
    span_id: int
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED * self.sampled:02x}"


def read_traceparent(text: str) -> TraceContext | None:
    """Parse a `traceparent`. An invalid one yields None and starts a new trace, as W3C requires."""
    # Bounded: a later version may be longer.
    found = _TRACEPARENT.fullmatch(text[:256])
    if found is None or (text.startswith("00") and found[4]):
        return None
    trace_id, span_id = int(found[1], 16), int(found[2], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(found[3], 16) & _SAMPLED))


class TraceSpan:
    """A timed part of a request. This base class records nothing, for requests that are not
    sampled.

    `traceparent` is for child spans in other processes, empty if there must be none. Times are
    nanoseconds of `time.time_ns`; None means now.
    """

    traceparent: str = ""

    def child(self, name: str, at_ns: int | None = None) -> TraceSpan:
        """Start a child span."""
        return self

    def set(self, **attributes: Attribute) -> None:
        """Set attributes."""

    def end(self, error: BaseException | None = None, at_ns: int | None = None) -> None:
        """End the span, perhaps with an error. Only the first call has an effect."""

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
"""The span of requests that are not sampled."""

current_span: ContextVar[TraceSpan] = ContextVar("current_span", default=NO_SPAN)
"""The span of the request that this task serves."""

enclosing_span: ContextVar[TraceSpan | None] = ContextVar("enclosing_span", default=None)
"""Parent of this task's next request. None starts a new trace, subject to sampling."""

given_traceparent: ContextVar[str] = ContextVar("given_traceparent", default="")
"""The traceparent of this task's client; a conversation's is given when it begins."""
