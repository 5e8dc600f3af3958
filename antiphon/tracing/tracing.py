"""Starts traces. Without an endpoint nothing is recorded or imported."""

from __future__ import annotations

import random
from collections.abc import Callable

from antiphon.errors import InvalidArgument
from antiphon.tracing.span import NO_SPAN, TraceSpan, read_traceparent


class Tracing:
    """Starts the first span of a request in this process. This base class records nothing."""

    def request(self, name: str, traceparent: str = "") -> TraceSpan:
        """Return a request's span, a child of the client's if there is one; `NO_SPAN` if not
        sampled."""
        return NO_SPAN

    def part(self, name: str, traceparent: str) -> TraceSpan:
        """Return a span in another process's trace; `NO_SPAN` if that is not sampled."""
        return NO_SPAN

    def close(self) -> None:
        """Export recorded spans. Blocks for a few seconds at most."""


class SampledTracing(Tracing):
    """Samples requests at random, so that a request that is not sampled costs one random number.

    With `trace_clients`, a client's traceparent decides if there is one. `begin` starts a span of a
    name below a traceparent, or a root span; `finish` exports all spans.
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
    """Return tracing to the collector at `endpoint`; none if empty.

    Raises `InvalidArgument` if OpenTelemetry is not installed.
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
