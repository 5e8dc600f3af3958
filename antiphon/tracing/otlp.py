"""Records spans with OpenTelemetry's SDK and exports them with OTLP over gRPC. This is the only
module that imports the SDK.

The SDK's sampler records every span, because the sampling decision is made before a span is
created. One of the SDK's threads exports the spans. Once `MOST_WAITING` spans are queued, further
spans are dropped. An unreachable collector therefore doesn't delay any requests.
"""

from __future__ import annotations

import threading

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from antiphon.errors import AntiphonError
from antiphon.tracing.span import Attribute, TraceContext, TraceSpan, read_traceparent
from antiphon.version import VERSION

MOST_WAITING = 2048
SENT_EVERY_MS = 1000
SEND_TIMEOUT_S = 2
CLOSE_WITHIN_S = 3.0


class OtlpSpans:
    """Creates spans for a service and exports them to a collector such as `http://host:4317`.

    If the collector hasn't accepted all spans within `close_within_s` seconds of a call to `close`,
    the remaining ones are dropped.
    """

    def __init__(self, endpoint: str, service: str, close_within_s: float = CLOSE_WITHIN_S) -> None:
        self._close_within_s = close_within_s
        # The scheme decides whether the connection is encrypted. If it is wrong, the connection
        # fails.
        self._exporter = OTLPSpanExporter(
            endpoint=endpoint,
            insecure=not endpoint.startswith("https://"),
            timeout=SEND_TIMEOUT_S,
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({"service.name": service, "service.version": VERSION}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter, max_queue_size=MOST_WAITING, schedule_delay_millis=SENT_EVERY_MS
            )
        )
        self._tracer = self._provider.get_tracer("antiphon", VERSION)

    def begin(self, name: str, traceparent: str) -> TraceSpan:
        """Start a span. It is a child of the span that `traceparent` identifies, or a root span if
        `traceparent` is empty.
        """
        parent = read_traceparent(traceparent)
        context = None if parent is None else set_span_in_context(_elsewhere(parent))
        made = self._tracer.start_span(name, context, SpanKind.SERVER)
        return RecordedSpan(self._tracer, made)

    def close(self) -> None:
        """Export all recorded spans. This blocks for at most `close_within_s` seconds."""
        # The SDK would wait longer, and this timeout can't be configured. Once the exporter has
        # been stopped, exports fail immediately.
        stopping = threading.Timer(self._close_within_s, self._exporter.shutdown)
        stopping.daemon = True
        stopping.start()
        try:
            self._provider.shutdown()
        finally:
            stopping.cancel()


class RecordedSpan(TraceSpan):
    """A span that is exported when it ends."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        context = span.get_span_context()
        self.traceparent = str(TraceContext(context.trace_id, context.span_id, sampled=True))

    def child(self, name: str, at_ns: int | None = None) -> TraceSpan:
        """Implements `TraceSpan`."""
        within = set_span_in_context(self._span)
        return RecordedSpan(self._tracer, self._tracer.start_span(name, within, start_time=at_ns))

    def set(self, **attributes: Attribute) -> None:
        """Implements `TraceSpan`."""
        for name, value in attributes.items():
            self._span.set_attribute(f"antiphon.{name}", value)

    def end(self, error: BaseException | None = None, at_ns: int | None = None) -> None:
        """Implements `TraceSpan`."""
        if not self._span.is_recording():
            return
        if error is not None:
            description = f"{type(error).__name__}: {error}"
            if isinstance(error, AntiphonError):
                description = error.message
                self.set(error_code=error.code.value, error_stage=error.stage)
            self._span.set_status(Status(StatusCode.ERROR, description))
        self._span.end(at_ns)


def _elsewhere(parent: TraceContext) -> Span:
    """Return the span of another process that the context identifies."""
    flags = TraceFlags(TraceFlags.SAMPLED)
    return NonRecordingSpan(
        SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)
    )
