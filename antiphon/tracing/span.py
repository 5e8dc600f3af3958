"""A span as the code that it is about sees it, and the one that records nothing."""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType

Attribute = str | int | float | bool

# Version, trace id, span id and flags, as W3C has them; a later version may have more.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where a span belongs, as it travels in a `traceparent`."""

    trace_id: int
    span_id: int
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED * self.sampled:02x}"


def read_traceparent(text: str) -> TraceContext | None:
    """The context; None when it is none, which is no error: the trace then begins anew."""
    # A later version may be longer, not without end.
    found = _TRACEPARENT.fullmatch(text[:256])
    if found is None or (text.startswith("00") and found[4]):
        return None
    trace_id, span_id = int(found[1], 16), int(found[2], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(found[3], 16) & _SAMPLED))


class TraceSpan:
    """A part of a request's time. This one, of a request that is not sampled, records nothing.

    `traceparent` is for whoever makes spans below it elsewhere; empty: for nobody. Moments are
    nanoseconds of `time.time_ns`; None is now.
    """

    traceparent: str = ""

    def child(self, name: str, at_ns: int | None = None) -> TraceSpan:
        """Begin a span within this one."""
        return self

    def set(self, **attributes: Attribute) -> None:
        """Say more of it."""

    def end(self, error: BaseException | None = None, at_ns: int | None = None) -> None:
        """It is over, perhaps with an error. Only the first end counts."""

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
"""Of every request that is not sampled."""

current_span: ContextVar[TraceSpan] = ContextVar("current_span", default=NO_SPAN)
"""The span of the request that this task answers."""

enclosing_span: ContextVar[TraceSpan | None] = ContextVar("enclosing_span", default=None)
"""What the next request of this task is a part of; None: nothing, so it begins a trace, or none."""

given_traceparent: ContextVar[str] = ContextVar("given_traceparent", default="")
"""What the client of this task gave; of a conversation's, with its beginning."""
