"""Starts traces. If no endpoint is configured, nothing is recorded and OpenTelemetry isn't
imported.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from antiphon.errors import InvalidArgument
from antiphon.tracing.span import NO_SPAN, TraceSpan, read_traceparent


class Tracing:
    """Starts the first span of a request in this process. This base class records nothing."""

    def request(self, name: str, traceparent: str = "") -> TraceSpan:
        """Return the span of a request, or `NO_SPAN` if the request isn't sampled.

        If the client sent a span, it becomes the parent.
        """
        return NO_SPAN

    def part(self, name: str, traceparent: str) -> TraceSpan:
        """Return a span that is part of another process's trace, or `NO_SPAN` if that trace isn't
        sampled.
        """
        return NO_SPAN

    def close(self) -> None:
        """Export all recorded spans. This can block for a few seconds."""


class SampledTracing(Tracing):
    """Samples requests at random. For a request that isn't sampled, the only cost is the generation
    of a random number.

    If `trace_clients` is true and the client has sent a traceparent, the client decides whether its
    request is sampled. `begin` starts a span with the given name, either as a child of a
    traceparent or as a root span. `finish` exports all spans.
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
        """Implements `Tracing`."""
        parent = read_traceparent(traceparent) if traceparent else None
        if parent is not None and self._trace_clients:
            sampled = parent.sampled
        else:
            sampled = self._draw() < self._ratio
        if not sampled:
            return NO_SPAN
        return self._begin(name, "" if parent is None else str(parent))

    def part(self, name: str, traceparent: str) -> TraceSpan:
        """Implements `Tracing`."""
        parent = read_traceparent(traceparent) if traceparent else None
        return self._begin(name, str(parent)) if parent is not None and parent.sampled else NO_SPAN

    def close(self) -> None:
        """Implements `Tracing`."""
        self._finish()


def open_tracing(
    endpoint: str, service: str, *, field: str, ratio: float = 0.0, trace_clients: bool = False
) -> Tracing:
    """Return an object that exports traces to the collector at `endpoint`. If `endpoint` is empty,
    nothing is traced.

    Raises `InvalidArgument` if OpenTelemetry isn't installed.
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
