"""Traces of turns that the stages hear while they are spoken."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

import antiphon
from antiphon.values.segment import FinishReason
from antiphon_testkit.trace_collector import SpanNode, TraceCollector, trace_collector
from tests.contract.fake_stages import THINKER, Session, think
from tests.contract.realtime_client import Realtime, realtime
from tests.contract.served_gateway import ServedGateway, serve_gateway
from tests.contract.slotted_stages import QUEUE

pytestmark = pytest.mark.asyncio(loop_scope="session")

HALF_A_SECOND = np.zeros(12_000, "<i2").tobytes()
TURN = base64.b64encode(HALF_A_SECOND).decode()


class Listener:
    """A thinker that answers when a turn's input is complete; `told` are the traces of its
    segments."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()
        self.given_up = asyncio.Event()
        self.told: list[str] = []

    async def __call__(self, session: Session) -> None:
        await session.opened()
        while session.segment.live:
            self.told.append(session.segment.traceparent)
            self.heard.set()
            if await self._is_finished(session):
                break
            await session.report(FinishReason.CANCELLED)
            self.given_up.set()
            await session.next_segment()
        else:
            self.told.append(session.segment.traceparent)
        await think(session)

    async def _is_finished(self, session: Session) -> bool:
        async for request in session.requests:
            kind = request.WhichOneof("message")
            if kind in ("input_finished", "cancel_segment"):
                return kind == "input_finished"
        raise AssertionError("the turn has no end")


@asynccontextmanager
async def listening(endpoint: str) -> AsyncIterator[tuple[ServedGateway, Listener]]:
    """A gateway all of whose requests are traced, and a thinker that hears."""
    settings = {"trace_endpoint": endpoint, "trace_ratio": 1.0, "listen_idle_s": 600.0}
    async with serve_gateway(**(QUEUE | {"listen_after_s": 0.2} | settings)) as served:
        thinker = served.fakes[THINKER].script = Listener()
        yield served, thinker


def traces(collector: TraceCollector) -> list[SpanNode]:
    """What began a trace. The gateway has ended, so all has been sent."""
    spans = [span for _, span in collector.spans if not span.parent_span_id]
    return [SpanNode(each, "", collector.tree(each.span_id.hex())) for each in spans]


def below(node: SpanNode) -> str:
    """What a stage is told whose span belongs below this one."""
    return f"00-{node.span.trace_id.hex()}-{node.span.span_id.hex()}-01"


def check_times(node: SpanNode) -> None:
    """Nothing begins before, or ends after, what it is part of."""
    for child in node.children.values():
        assert node.span.start_time_unix_nano <= child.span.start_time_unix_nano, child.span.name
        assert child.span.end_time_unix_nano <= node.span.end_time_unix_nano, child.span.name
        check_times(child)


async def begin_turn(client: Realtime, thinker: Listener) -> None:
    """Say half a second, of which the stages hear; answers are text."""
    audio = {"input": {"turn_detection": None}}
    session = {"type": "realtime", "output_modalities": ["text"], "audio": audio}
    await client.send("session.update", session=session)
    await client.until("session.updated")
    await client.send("input_audio_buffer.append", audio=TURN)
    await thinker.heard.wait()


async def answered(client: Realtime) -> None:
    await client.send("response.create")
    assert (await client.until("response.done"))["response"]["status"] == "completed"


ANSWERED = {"listening": {}, "response": {"admission": {}}, "segment": {"open": {}}}


async def test_turn_over_the_websocket_is_one_trace_from_its_first_words_to_its_answer() -> None:
    with trace_collector() as (collector, endpoint):
        async with listening(endpoint) as (served, thinker), realtime(served) as client:
            await begin_turn(client, thinker)
            await client.send("input_audio_buffer.commit")
            await answered(client)
        (turn,) = traces(collector)
    assert (turn.span.name, turn.shape()) == ("turn", ANSWERED)
    assert thinker.told == [below(turn.children["segment"])]
    check_times(turn)
    heard, response = turn.children["listening"].span, turn.children["response"].span
    assert heard.start_time_unix_nano < response.start_time_unix_nano
    assert heard.end_time_unix_nano < response.end_time_unix_nano


async def test_turn_over_grpc_is_one_trace_too() -> None:
    with trace_collector() as (collector, endpoint):
        async with (
            listening(endpoint) as (served, thinker),
            antiphon.AsyncClient(served.gateway.grpc_address) as client,
            client.converse(spoken=False, turns=None) as call,
        ):
            await call.send_audio(HALF_A_SECOND)
            await thinker.heard.wait()
            await call.commit_audio()
            await call.respond()
            async for event in call:
                if isinstance(event, antiphon.ResponseDone):
                    assert event.response.status == "completed"
                    break
        (turn,) = traces(collector)
    assert (turn.span.name, turn.shape()) == ("turn", ANSWERED)
    assert thinker.told == [below(turn.children["segment"])]


async def test_turn_that_was_dropped_is_a_trace_and_the_next_answer_another() -> None:
    with trace_collector() as (collector, endpoint):
        async with listening(endpoint) as (served, thinker), realtime(served) as client:
            await begin_turn(client, thinker)
            await client.send("input_audio_buffer.clear")
            await thinker.given_up.wait()
            await client.say("Hi")
            await answered(client)
        dropped, response = traces(collector)
    assert (dropped.span.name, dropped.shape()) == ("turn", {"listening": {}, "segment": {}})
    assert (response.span.name, response.shape()) == (
        "response",
        {"admission": {}, "segment": {"open": {}}},
    )
    check_times(dropped)


async def test_answer_that_takes_the_plain_way_stays_in_the_trace_of_the_turn() -> None:
    with trace_collector() as (collector, endpoint):
        async with listening(endpoint) as (served, thinker), realtime(served) as client:
            await begin_turn(client, thinker)
            # What is asked differs from what the stages were told.
            await client.send("input_audio_buffer.commit")
            await client.send(
                "session.update", session={"type": "realtime", "instructions": "Sing"}
            )
            await answered(client)
        (turn,) = traces(collector)
    assert sorted(turn.children) == ["listening", "response", "segment"]
    plain = turn.children["response"]
    assert plain.shape() == {"admission": {}, "segment": {"open": {}}}
    assert thinker.told == [below(turn.children["segment"]), below(plain.children["segment"])]
    check_times(turn)
