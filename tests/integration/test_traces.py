"""One trace over the gateway and its stages, as a collector gets it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import pytest
from families import TEXT, served
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from test_families_to_come import READS_TEXT, text_readers

import antiphon
from antiphon.v1 import speech_pb2
from antiphon.wire.stubs import speech_stub

TRACE_ID, CLIENTS_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{CLIENTS_SPAN}-01"
NOT_SAMPLED = SAMPLED[:-2] + "00"
IMPORTS_NOTHING = """
import sys
import gateway.__main__, services.__main__, antiphon.runtime.server.main
from antiphon.deployment.schema import Deployment, StageConfig
from gateway.server import Gateway
Gateway(Deployment(stages={"mind": StageConfig(addresses=("127.0.0.1:1",))}))
print(*(name for name in sys.modules if name.partition(".")[0] == "opentelemetry"))
"""


@dataclass(frozen=True)
class Node:
    """A span with those below it, by name."""

    span: Span
    service: str
    children: dict[str, Node]

    def shape(self) -> dict[str, object]:
        return {name: child.shape() for name, child in sorted(self.children.items())}


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP collector that keeps what it gets. It answers on threads of its own, so that a
    process may wait for it that lets its event loop stand."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(names["service.name"], span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def tree(self, parent: str = CLIENTS_SPAN) -> dict[str, Node]:
        """Spans below one, by name; each name comes once."""
        below = [each for each in self.spans if each[1].parent_span_id.hex() == parent]
        nodes = {
            span.name: Node(span, service, self.tree(span.span_id.hex())) for service, span in below
        }
        assert len(nodes) == len(below), [span.name for _, span in below]
        return nodes


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


STAGE = {"output": {}, "prefill": {}, "queue": {}}
ANSWER = {"admission": {}, "segment": {"mind": STAGE, "open": {}, "voice": STAGE}}


def check_times(node: Node) -> None:
    """Nothing begins before, or ends after, what it is part of."""
    assert node.span.start_time_unix_nano <= node.span.end_time_unix_nano
    for child in node.children.values():
        assert node.span.start_time_unix_nano <= child.span.start_time_unix_nano, child.span.name
        assert child.span.end_time_unix_nano <= node.span.end_time_unix_nano, child.span.name
        check_times(child)


async def test_a_clients_trace_goes_on_through_the_gateway_and_every_stage() -> None:
    with collecting() as (collector, endpoint):
        async with served(
            READS_TEXT, text_readers(), trace_endpoint=endpoint, trace_ratio=0.0
        ) as family:
            assert (await family.chat()).status_code == 200
            for given in (NOT_SAMPLED, "nonsense", SAMPLED):
                family.http.headers["traceparent"] = given
                answer = await family.chat(modalities=["text", "audio"], audio={"format": "wav"})
                assert answer.status_code == 200
        assert {span.trace_id.hex() for _, span in collector.spans} == {TRACE_ID}
        (request,) = collector.tree().values()
        assert request.span.name == "POST /v1/chat/completions"
        assert request.shape() == ANSWER
        segment = request.children["segment"]
        assert {name: node.service for name, node in segment.children.items()} == {
            "open": "antiphon-gateway",
            "mind": "antiphon-mind",
            "voice": "antiphon-voice",
        }
        check_times(request)
        told = {each.key: each.value for each in segment.children["mind"].span.attributes}
        assert told["antiphon.output_positions"].int_value == len(TEXT)
        assert told["antiphon.finish_reason"].string_value == "stop"


async def test_a_call_over_grpc_goes_on_with_its_clients_trace() -> None:
    with collecting() as (collector, endpoint):
        async with (
            served(READS_TEXT, text_readers(), trace_endpoint=endpoint) as family,
            grpc.aio.insecure_channel(family.grpc_address) as channel,
        ):
            message = speech_pb2.Message(role="user", parts=[speech_pb2.Part(text=TEXT)])
            request = speech_pb2.GenerateRequest(messages=[message])
            metadata = (("traceparent", SAMPLED),)
            async for _ in speech_stub(channel).Generate(request, metadata=metadata):
                pass
        (call,) = collector.tree().values()
        assert (call.span.name, call.shape()) == ("Generate", ANSWER)


async def test_a_share_of_requests_is_traced_where_clients_say_nothing() -> None:
    with collecting() as (collector, endpoint):
        async with served(
            READS_TEXT, text_readers(), trace_endpoint=endpoint, trace_ratio=1.0
        ) as family:
            async with family.client.converse() as call:
                for _ in range(2):
                    await call.add(TEXT)
                    await call.respond()
                    async for event in call:
                        if isinstance(event, antiphon.ResponseDone):
                            assert event.response.status == "completed"
                            break
            refused = await family.chat(modalities=["image"])
            assert refused.status_code == 400
        roots = [span for _, span in collector.spans if not span.parent_span_id]
        assert [span.name for span in roots] == ["response"] * 2 + ["POST /v1/chat/completions"]
        assert len({span.trace_id for span in roots}) == 3
        for span in roots[:2]:
            assert Node(span, "", collector.tree(span.span_id.hex())).shape() == ANSWER
        assert roots[2].status.code == Status.STATUS_CODE_ERROR
        assert [span.status.code for span in roots[:2]] == [Status.STATUS_CODE_UNSET] * 2


async def test_an_answer_that_fails_has_its_error_in_the_trace() -> None:
    engines = text_readers()
    with collecting() as (collector, endpoint):
        async with served(READS_TEXT, engines, trace_endpoint=endpoint) as family:
            family.http.headers["traceparent"] = SAMPLED
            answer = await family.chat(
                modalities=["text", "audio"], audio={"format": "wav"}, max_tokens=-1
            )
            assert answer.status_code == 400
        (request,) = collector.tree().values()
        assert request.span.status.code == Status.STATUS_CODE_ERROR
        assert "max_tokens" in request.span.status.message


@pytest.mark.processes
def test_nothing_of_opentelemetry_is_imported_when_no_endpoint_is_named() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTS_NOTHING], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == []
