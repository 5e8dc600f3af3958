"""One trace over the gateway and its stages, as a collector gets it."""

from __future__ import annotations

import subprocess
import sys
import threading

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Status

import antiphon
from antiphon.tracing.otlp import MOST_WAITING, OtlpSpans
from antiphon.v1 import speech_pb2
from antiphon.wire.stubs import speech_stub
from antiphon_testkit.trace_collector import SpanNode, TraceCollector, trace_collector
from tests.integration.families import TEXT, served
from tests.integration.test_families_to_come import READS_TEXT, text_readers

TRACE_ID, CLIENTS_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{CLIENTS_SPAN}-01"
NOT_SAMPLED = SAMPLED[:-2] + "00"
IMPORTS_NOTHING = """
import sys
import antiphon_gateway.__main__, antiphon_services.__main__, antiphon.runtime.server.main
from antiphon.deployment.schema import Deployment, StageConfig
from antiphon_gateway.server import Gateway
Gateway(Deployment(stages={"mind": StageConfig(addresses=("127.0.0.1:1",))}))
print(*(name for name in sys.modules if name.partition(".")[0] == "opentelemetry"))
"""


STAGE = {"output": {}, "prefill": {}, "queue": {}}
ANSWER = {"admission": {}, "segment": {"mind": STAGE, "open": {}, "voice": STAGE}}


def check_times(node: SpanNode) -> None:
    """Nothing begins before, or ends after, what it is part of."""
    assert node.span.start_time_unix_nano <= node.span.end_time_unix_nano
    for child in node.children.values():
        assert node.span.start_time_unix_nano <= child.span.start_time_unix_nano, child.span.name
        assert child.span.end_time_unix_nano <= node.span.end_time_unix_nano, child.span.name
        check_times(child)


async def test_a_clients_trace_goes_on_through_the_gateway_and_every_stage() -> None:
    with trace_collector() as (collector, endpoint):
        async with served(
            READS_TEXT,
            text_readers(),
            trace_endpoint=endpoint,
            trace_ratio=0.0,
            trace_clients=True,
        ) as family:
            assert (await family.chat()).status_code == 200
            for given in (NOT_SAMPLED, "nonsense", SAMPLED):
                family.http.headers["traceparent"] = given
                answer = await family.chat(modalities=["text", "audio"], audio={"format": "wav"})
                assert answer.status_code == 200
        assert {span.trace_id.hex() for _, span in collector.spans} == {TRACE_ID}
        (request,) = collector.tree(CLIENTS_SPAN).values()
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
    with trace_collector() as (collector, endpoint):
        async with (
            served(
                READS_TEXT, text_readers(), trace_endpoint=endpoint, trace_clients=True
            ) as family,
            grpc.aio.insecure_channel(family.grpc_address) as channel,
        ):
            message = speech_pb2.Message(role="user", parts=[speech_pb2.Part(text=TEXT)])
            request = speech_pb2.GenerateRequest(messages=[message])
            metadata = (("traceparent", SAMPLED),)
            async for _ in speech_stub(channel).Generate(request, metadata=metadata):
                pass
        (call,) = collector.tree(CLIENTS_SPAN).values()
        assert (call.span.name, call.shape()) == ("Generate", ANSWER)


async def test_a_share_of_requests_is_traced_where_clients_say_nothing() -> None:
    with trace_collector() as (collector, endpoint):
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
            assert SpanNode(span, "", collector.tree(span.span_id.hex())).shape() == ANSWER
        assert roots[2].status.code == Status.STATUS_CODE_ERROR
        assert [span.status.code for span in roots[:2]] == [Status.STATUS_CODE_UNSET] * 2


@pytest.mark.parametrize(("ratio", "given"), [(0.0, SAMPLED), (1.0, NOT_SAMPLED)])
async def test_a_client_that_is_not_trusted_does_not_decide_whether_it_is_traced(
    ratio: float, given: str
) -> None:
    with trace_collector() as (collector, endpoint):
        async with served(
            READS_TEXT, text_readers(), trace_endpoint=endpoint, trace_ratio=ratio
        ) as family:
            family.http.headers["traceparent"] = given
            assert (await family.chat()).status_code == 200
        begun = [node.span.trace_id.hex() for node in collector.tree(CLIENTS_SPAN).values()]
        assert begun == ([TRACE_ID] if ratio else [])
        assert bool(collector.spans) == bool(ratio)


async def test_an_answer_that_fails_has_its_error_in_the_trace() -> None:
    engines = text_readers()
    with trace_collector() as (collector, endpoint):
        async with served(
            READS_TEXT, engines, trace_endpoint=endpoint, trace_clients=True
        ) as family:
            family.http.headers["traceparent"] = SAMPLED
            answer = await family.chat(
                modalities=["text", "audio"], audio={"format": "wav"}, max_tokens=-2
            )
            assert answer.status_code == 400
        (request,) = collector.tree(CLIENTS_SPAN).values()
        assert request.span.status.code == Status.STATUS_CODE_ERROR
        assert "max_tokens" in request.span.status.message


class Unanswering(TraceCollector):
    """Takes calls and answers none, until released."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.released = threading.Event(), threading.Event()

    def Export(self, request: object, context: object) -> ExportTraceServiceResponse:
        self.asked.set()
        self.released.wait()
        return ExportTraceServiceResponse()


def test_the_end_waits_for_no_collector_that_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped_by: list[threading.Thread] = []
    stop = OTLPSpanExporter.shutdown

    def shutdown(exporter: OTLPSpanExporter) -> None:
        stopped_by.append(threading.current_thread())
        stop(exporter)

    monkeypatch.setattr(OTLPSpanExporter, "shutdown", shutdown)
    silent = Unanswering()
    with trace_collector(silent) as (_, endpoint):
        spans = OtlpSpans(endpoint, "antiphon", close_within_s=0.05)
        try:
            for number in range(MOST_WAITING):
                spans.begin(str(number), "").end()
            silent.asked.wait()
            spans.close()
        finally:
            silent.released.set()
    # The SDK stops it too, but only when all is sent, or given up much later.
    assert stopped_by[0] is not threading.current_thread()


@pytest.mark.processes
def test_nothing_of_opentelemetry_is_imported_when_no_endpoint_is_named() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTS_NOTHING], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == []
