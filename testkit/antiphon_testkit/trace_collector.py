"""An OTLP collector that stores the spans that it receives.

`python -m antiphon_testkit.trace_collector` prints its endpoint. When standard input ends, it
prints one line of JSON for each span.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True)
class SpanNode:
    """A span, and the spans below it by name."""

    span: Span
    service: str
    children: dict[str, SpanNode]

    def shape(self) -> dict[str, object]:
        """Return only the names."""
        return {name: child.shape() for name, child in sorted(self.children.items())}


class TraceCollector(trace_service_pb2_grpc.TraceServiceServicer):
    """The collector. It uses threads of its own, so that a process with a blocked event loop can
    wait for it.
    """

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Store the spans."""
        for resource in request.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(names["service.name"], span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def tree(self, parent: str) -> dict[str, SpanNode]:
        """Return the spans below a span, by name. Each name must be unique."""
        below = [each for each in self.spans if each[1].parent_span_id.hex() == parent]
        nodes = {
            span.name: SpanNode(span, service, self.tree(span.span_id.hex()))
            for service, span in below
        }
        assert len(nodes) == len(below), [span.name for _, span in below]
        return nodes


@contextmanager
def trace_collector(
    collector: TraceCollector | None = None,
) -> Iterator[tuple[TraceCollector, str]]:
    """Run a collector within the context, and return it together with its endpoint."""
    collector, server = collector or TraceCollector(), grpc.server(ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(  # type: ignore[no-untyped-call]
        collector, server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def main() -> None:
    """Run the command that the module's docstring describes."""
    with trace_collector() as (collector, endpoint):
        print(endpoint, flush=True)
        sys.stdin.read()
    for service, span in collector.spans:
        told = {
            "service": service,
            "name": span.name,
            "trace": span.trace_id.hex(),
            "span": span.span_id.hex(),
            "parent": span.parent_span_id.hex(),
            "start_ns": span.start_time_unix_nano,
            "end_ns": span.end_time_unix_nano,
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
