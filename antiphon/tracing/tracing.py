"""What begins traces. Without an endpoint nothing is recorded, and nothing imported for it."""

from __future__ import annotations

import random
from collections.abc import Callable

from antiphon.errors import InvalidArgument
from antiphon.tracing.span import NO_SPAN, TraceSpan, read_traceparent


class Tracing:
    """Begins the first span that a request has in this process. This one records none."""

    def request(self, name: str, traceparent: str = "") -> TraceSpan:
        """The span of a request, below the client's own if there is one; or none."""
        return NO_SPAN

    def part(self, name: str, traceparent: str) -> TraceSpan:
        """The span of what another process asks for in a trace of its own, or none."""
        return NO_SPAN

    def close(self) -> None:
        """Send what is recorded, for a few seconds at most. Blocks."""


class SampledTracing(Tracing):
    """Decides by a draw of a number, so that a request that is not sampled costs nothing else;
    or, with `trace_clients`, as the client's traceparent says, where it gives one.

    `begin` makes the span of a name below a context, or at the top; `finish` sends all.
    """

    def __init__(
        self,
        begin: Callable[[str, str], TraceSpan],
        finish: Callable[[], None],
        ratio: float,
        draw: Callable[[], float] = random.random,
        *,
        trace_clients: bool = False,
    ) -> None:
        self._begin = begin
        self._finish = finish
        self._ratio = ratio
        self._draw = draw
        self._trace_clients = trace_clients

    def request(self, name: str, traceparent: str = "") -> TraceSpan:
        """See `Tracing`."""
        parent = read_traceparent(traceparent) if traceparent else None
        if parent is not None and self._trace_clients:
            sampled = parent.sampled
        else:
            sampled = self._draw() < self._ratio
        if not sampled:
            return NO_SPAN
        return self._begin(name, "" if parent is None else str(parent))

    def part(self, name: str, traceparent: str) -> TraceSpan:
        """See `Tracing`."""
        parent = read_traceparent(traceparent) if traceparent else None
        return self._begin(name, str(parent)) if parent is not None and parent.sampled else NO_SPAN

    def close(self) -> None:
        """See `Tracing`."""
        self._finish()


def open_tracing(
    endpoint: str, service: str, *, field: str, ratio: float = 0.0, trace_clients: bool = False
) -> Tracing:
    """Traces that go to the collector at `endpoint`; empty: none.

    Raises `InvalidArgument` when OpenTelemetry is not installed.
    """
    if not endpoint:
        return Tracing()
    try:
        from antiphon.tracing.otlp import OtlpSpans
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"{field}: OpenTelemetry is not installed; install antiphon[tracing], or leave it out",
            field=field,
        ) from error
    spans = OtlpSpans(endpoint, service)
    return SampledTracing(spans.begin, spans.close, ratio, trace_clients=trace_clients)
