from __future__ import annotations

import sys

import pytest

from antiphon.errors import InvalidArgument
from antiphon.tracing.span import NO_SPAN, TraceSpan, read_traceparent
from antiphon.tracing.tracing import SampledTracing, Tracing, open_tracing

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


def test_a_traceparent_is_read_and_written() -> None:
    context = read_traceparent(SAMPLED)
    assert context is not None
    assert (context.trace_id, context.span_id) == (int(TRACE, 16), int(SPAN, 16))
    assert context.sampled
    assert str(context) == SAMPLED
    assert str(read_traceparent(NOT_SAMPLED)) == NOT_SAMPLED


def test_a_later_version_may_say_more_and_have_other_flags() -> None:
    context = read_traceparent(f"cc-{TRACE}-{SPAN}-fb-what-the-future-will-be-like")
    assert str(context) == SAMPLED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        SAMPLED.upper(),
        SAMPLED[:-1],
        f"{SAMPLED}-more",
        f"{SAMPLED}\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f" {SAMPLED}",
    ],
)
def test_what_is_no_traceparent_is_none(text: str) -> None:
    assert read_traceparent(text) is None


@pytest.mark.parametrize(
    ("trusted", "drawn", "given", "begun"),
    [
        (True, 0.09, "", [("it", "")]),
        (True, 0.1, "", []),
        (True, 0.09, "nonsense", [("it", "")]),
        (True, 0.9, SAMPLED, [("it", SAMPLED)]),
        (True, 0.0, NOT_SAMPLED, []),
        (False, 0.09, SAMPLED, [("it", SAMPLED)]),
        (False, 0.1, SAMPLED, []),
        (False, 0.09, NOT_SAMPLED, [("it", NOT_SAMPLED)]),
        (False, 0.09, "", [("it", "")]),
    ],
)
def test_a_request_is_traced_as_drawn_or_as_a_client_says_that_is_trusted(
    trusted: bool, drawn: float, given: str, begun: list[tuple[str, str]]
) -> None:
    made: list[tuple[str, str]] = []

    def begin(name: str, traceparent: str) -> TraceSpan:
        made.append((name, traceparent))
        return TraceSpan()

    tracing = SampledTracing(begin, lambda: None, 0.1, lambda: drawn, trace_clients=trusted)
    span = tracing.request("it", given)
    assert made == begun
    assert (span is not NO_SPAN) == bool(begun)
    # A part of what nobody traces is none, whatever is drawn.
    made.clear()
    tracing.part("it", given)
    assert made == ([("it", SAMPLED)] if given == SAMPLED else [])


def test_without_an_endpoint_nothing_is_recorded() -> None:
    tracing = open_tracing("", "antiphon-gateway", field="gateway.trace.endpoint", ratio=1.0)
    assert type(tracing) is Tracing
    with tracing.request("it", SAMPLED) as span:
        assert span is NO_SPAN
        assert span.child("more") is NO_SPAN
        assert span.traceparent == ""


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "antiphon.tracing.otlp", None)
    with pytest.raises(InvalidArgument, match=r"gateway.trace.endpoint.*antiphon\[tracing\]"):
        open_tracing("http://collector:4317", "antiphon", field="gateway.trace.endpoint")
