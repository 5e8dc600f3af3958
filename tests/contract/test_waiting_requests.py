"""Requests that find no slot wait for one, in order, for a time, and not in vain."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

import antiphon
from antiphon.errors import ResourceExhausted, Unavailable
from antiphon_gateway.orders.order import Order
from tests.contract.fake_stages import CODE2WAV, ROLES, TALKER, THINKER, Session
from tests.contract.realtime_client import realtime
from tests.contract.served_gateway import MESSAGES, MODEL, SPOKEN, ServedGateway, serve_gateway
from tests.contract.slotted_stages import (
    QUEUE,
    Gate,
    WaitingRequests,
    open_slotted,
    waiting_requests,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT: dict[str, Any] = {"modalities": ["text"]}


@pytest.fixture
def waiting() -> Iterator[WaitingRequests]:
    with waiting_requests() as handler:
        yield handler


async def seen(session: Session) -> str:
    """What the client said in a session of the thinker."""
    assert session.input is not None
    return str(bytes(session.input.tensors["messages"]))


def ask(served: ServedGateway, text: str, **fields: Any) -> asyncio.Task[Any]:
    messages = [{"role": "user", "content": text}]
    return asyncio.create_task(served.chat(messages=messages, **fields))


async def test_all_of_64_requests_are_answered_by_16_slots() -> None:
    async with open_slotted(16) as (served, stages):
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
            asking = [
                client.chat.completions.create(model=MODEL, messages=MESSAGES, **SPOKEN)
                for _ in range(64)
            ]
            answers = await asyncio.gather(*asking)
        assert [a.choices[0].message.audio.transcript for a in answers] == ["Hello wörld!"] * 64
        assert [stages[role].refused for role in ROLES] == [0, 0, 0], "the gateway counts"
        assert await served.metric('antiphon_gateway_wait_seconds_count{urgency="audio"}') == 64
        await served.gateway.calls.wait_idle()
        assert await served.metric("antiphon_gateway_waiting") == 0


async def test_slots_that_others_take_are_waited_for_though_nobody_told_how_many() -> None:
    """The client sees nothing of the refusals."""
    async with open_slotted(2, told=False) as (served, stages):
        stages[TALKER].others = 2
        answers = await asyncio.gather(*(served.chat(stream=True, **SPOKEN) for _ in range(6)))
        assert {each.status_code for each in answers} == {200}
        assert all(each.text.endswith("data: [DONE]\n\n") for each in answers)
        assert stages[TALKER].refused >= 3
        await served.gateway.calls.wait_idle()
        assert [stages[role].running for role in ROLES] == [0, 0, 0]


async def test_a_turn_before_new_requests_and_audio_before_text(waiting: WaitingRequests) -> None:
    async with serve_gateway(max_calls=1, **QUEUE) as served, realtime(served) as client:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        await client.say("turn")
        asking = [ask(served, "first", **TEXT)]
        await gate.begun.get()
        for number, (text, fields) in enumerate([("text", TEXT), ("audio", SPOKEN)], start=1):
            asking.append(ask(served, text, **fields))
            await waiting.until(number)
        await client.send("response.create")
        await waiting.until(3)
        order = []
        for _ in range(3):
            gate.let_through()
            order.append(await seen(await gate.begun.get()))
        gate.let_through()
        assert [next(w for w in ("turn", "audio", "text") if w in each) for each in order] == [
            "turn",
            "audio",
            "text",
        ]
        assert {(await each).status_code for each in asking} == {200}
        assert (await client.until("response.done"))["response"]["status"] == "completed"


async def test_text_is_answered_while_all_talkers_speak(waiting: WaitingRequests) -> None:
    """A stage that is done with its part gives its slot to others at once."""
    async with open_slotted(2) as (served, _):
        gate = served.fakes[TALKER].script = Gate(TALKER)
        speaking = [ask(served, "long", **SPOKEN) for _ in range(3)]
        for _ in range(2):
            await gate.begun.get()
        await waiting.until(1)
        assert (await ask(served, "short", **TEXT)).status_code == 200
        for _ in speaking:
            gate.let_through()
        assert {(await each).status_code for each in speaking} == {200}


async def test_who_leaves_the_queue_leaves_nothing(
    no_collection: None, waiting: WaitingRequests
) -> None:
    async with serve_gateway(max_calls=1, **QUEUE) as served:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        first = ask(served, "first", **TEXT)
        await gate.begun.get()
        leaving = ask(served, "x" * 500_000, **TEXT)
        await waiting.until(1)
        held = await served.held()
        assert held["waiting"] >= 500_000
        assert "uploads" not in held, "counted once"
        staying = ask(served, "staying", **TEXT)
        await waiting.until(2)
        leaving.cancel()
        await waiting.until(1)
        assert (await served.held())["waiting"] < 1000
        kept = [each for each in gc.get_objects() if type(each) is Order]
        assert all(each.size_bytes < 1000 for each in kept)
        gate.let_through(2)
        assert [(await each).status_code for each in (first, staying)] == [200, 200]
        assert len(served.fakes[THINKER].sessions) == 2


@pytest.mark.parametrize("turn", [False, True], ids=["request", "turn"])
async def test_who_is_refused_by_a_stage_until_his_time_is_over_leaves_nothing(
    no_collection: None, turn: bool
) -> None:
    async with open_slotted(1, told=False, queue_timeout_s=0.5) as (served, stages):
        stages[THINKER].others = 1_000_000
        async with realtime(served) as client:
            if turn:
                await client.say("x" * 300_000)
                await client.send("response.create")
                done = (await client.until("response.done"))["response"]
                assert "gateway.queue.timeout_s" in done["status_details"]["error"]["message"]
            else:
                refused = await ask(served, "x" * 300_000, **TEXT)
                assert "gateway.queue.timeout_s" in refused.json()["error"]["message"]
        assert stages[THINKER].refused > 0
        await served.gateway.calls.wait_idle()
        kept = [each for each in gc.get_objects() if type(each) is Order]
        assert all(each.size_bytes < 1000 for each in kept)


async def test_those_who_wait_are_refused_when_the_gateway_is_told_to_stop(
    waiting: WaitingRequests,
) -> None:
    async with serve_gateway(max_calls=1, **QUEUE) as served:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        running = ask(served, "first", **TEXT)
        await gate.begun.get()
        late = ask(served, "second", **TEXT)
        await waiting.until(1)
        once = antiphon.Retry(attempts=1)
        async with antiphon.AsyncClient(served.gateway.grpc_address, retry=once) as client:
            speaking = asyncio.create_task(client.generate("third").collect())
            await waiting.until(2)
            served.gateway.calls.refuse()
            refused = await late
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "shutting down" in refused.json()["error"]["message"]
            with pytest.raises(Unavailable, match="shutting down"):
                await speaking
        gate.let_through()
        assert (await running).status_code == 200


async def test_the_time_in_the_queue_is_taken_from_the_stages(waiting: WaitingRequests) -> None:
    loop = asyncio.get_running_loop()
    async with serve_gateway(max_calls=1, **QUEUE) as served:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        running = ask(served, "first", **TEXT)
        await gate.begun.get()
        async with antiphon.AsyncClient(served.gateway.grpc_address) as client:
            asking = asyncio.create_task(client.generate("Hi", timeout_s=90.0).collect())
            await waiting.until(1)
            waits_since = loop.time()
            await asyncio.sleep(0.2)
            waited_s = loop.time() - waits_since
            gate.let_through(2)
            await gate.begun.get()
            await asking
        for role in ROLES:
            left_s = served.fakes[role].sessions[-1].segment.deadline_s
            # gRPC rounds such a timeout up to the next tenth of a second.
            assert 30 < left_s <= 90.1 - waited_s
        assert (await running).status_code == 200


class Untimed(httpx.AsyncHTTPTransport):
    """Waits as long as it takes, whatever the client says of its patience."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions = {**request.extensions, "timeout": {}}
        return await super().handle_async_request(request)


async def test_work_that_cannot_begin_in_time_is_refused_at_once() -> None:
    """By OpenAI's own header of what the client waits, and by how long calls have taken."""
    loop = asyncio.get_running_loop()
    async with serve_gateway(max_calls=1, **QUEUE) as served:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        began = loop.time()
        running = ask(served, "first", **TEXT)
        await gate.begun.get()
        await asyncio.sleep(1.1)
        hasty = openai.AsyncOpenAI(
            base_url=f"{served.url}/v1",
            api_key="none",
            max_retries=0,
            timeout=1.0,
            http_client=httpx.AsyncClient(transport=Untimed()),
        )
        with pytest.raises(openai.RateLimitError, match="can't be answered in time") as caught:
            await hasty.chat.completions.create(model=MODEL, messages=MESSAGES, **TEXT)
        running_for_s = loop.time() - began
        # The only call is held for so long already.
        assert 2 <= int(caught.value.response.headers["retry-after"]) <= running_for_s + 1
        reason = 'antiphon_gateway_not_admitted_total{reason="late"}'
        assert await served.metric(reason) == 1
        gate.let_through()
        assert (await running).status_code == 200
        await hasty.close()


async def test_the_queue_is_bounded_in_length_and_bytes(waiting: WaitingRequests) -> None:
    bounds = {"max_waiting": 2, "max_memory_bytes": 4000, "queue_timeout_s": 600.0}
    async with serve_gateway(max_calls=1, **bounds) as served:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        running = ask(served, "first", **TEXT)
        await gate.begun.get()
        second = ask(served, "x" * 600, **TEXT)
        await waiting.until(1)
        large = await ask(served, "x" * 401, **TEXT)
        assert "requests waiting for a slot have used up" in large.json()["error"]["message"]
        assert "gateway.limits.max_memory_bytes" in large.json()["error"]["message"]
        short = ask(served, "short", **TEXT)
        await waiting.until(2)
        third = await ask(served, "third", **TEXT)
        assert "gateway.queue.max_waiting" in third.json()["error"]["message"]
        for refused in (large, third):
            assert_refused(refused)
        for reason in ("max_waiting", "max_memory_bytes"):
            assert await served.metric(not_admitted(reason)) == 1
        gate.let_through(3)
        assert {(await each).status_code for each in (running, second, short)} == {200}
        assert not await served.held()


async def test_the_queue_is_bounded_in_time(waiting: WaitingRequests) -> None:
    """The bound is long beside the time that the first request has been running for, from which
    the gateway estimates how long the second would wait."""
    async with serve_gateway(max_calls=1, max_waiting=1, queue_timeout_s=6.0) as served:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        running = ask(served, "first", **TEXT)
        await gate.begun.get()
        second = await ask(served, "second", **TEXT)
        assert "gateway.queue.timeout_s" in second.json()["error"]["message"]
        assert_refused(second)
        assert await served.metric(not_admitted("queue_timeout_s")) == 1
        gate.let_through()
        assert (await running).status_code == 200


def assert_refused(answer: httpx.Response) -> None:
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "resource_exhausted"
    assert int(answer.headers["retry-after"]) >= 1


def not_admitted(reason: str) -> str:
    return f'antiphon_gateway_not_admitted_total{{reason="{reason}"}}'


async def test_choices_get_their_slots_together(waiting: WaitingRequests) -> None:
    """Two orders that hold a part of what they need would wait for each other for ever."""
    async with open_slotted(3) as (served, stages):
        answers = await asyncio.gather(*(served.chat(n=2, **SPOKEN) for _ in range(8)))
        assert {each.status_code for each in answers} == {200}
        assert {len(each.json()["choices"]) for each in answers} == {2}
        assert [stages[role].refused for role in ROLES] == [0, 0, 0]
        never = await served.chat(n=4)
        assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
        assert never.headers["x-should-retry"] == "false"
        assert "retry-after" not in never.headers


async def test_choices_of_which_one_is_refused_all_begin_anew() -> None:
    async with open_slotted(2, told=False) as (served, stages):
        stage = stages[CODE2WAV]
        usual, stage.others = stage.script, 1

        async def speak(session: Session) -> None:
            # One choice is not over before the other comes.
            await session.opened()
            await stage.others_left.wait()
            await usual(session)

        stage.script = speak
        answer = await served.chat(n=2, stream=True, **SPOKEN)
        assert answer.status_code == 200
        assert stage.refused >= 3
        assert answer.text.count('"finish_reason":"stop"') == 2


async def test_a_turn_that_is_cancelled_in_the_queue_ends_without_the_stages(
    waiting: WaitingRequests,
) -> None:
    async with serve_gateway(max_calls=1, **QUEUE) as served, realtime(served) as client:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        running = ask(served, "first", **TEXT)
        await gate.begun.get()
        await client.say("Hi")
        await client.send("response.create")
        await waiting.until(1)
        await client.send("response.cancel")
        done = (await client.until("response.done"))["response"]
        assert (done["status"], done["output"]) == ("cancelled", [])
        assert done["status_details"]["reason"] == "client_cancelled"
        await waiting.until(0)
        gate.let_through(2)
        assert (await running).status_code == 200
        await client.send("response.create")
        assert (await client.until("response.done"))["response"]["status"] == "completed"
        assert len(served.fakes[THINKER].sessions) == 2


async def test_a_turn_that_a_stage_refuses_waits_and_keeps_its_session() -> None:
    async def full_once(session: Session) -> None:
        await session_of_waves(session)
        await session.refuse_segment(ResourceExhausted("all slots are taken"))
        await session.next_segment()
        await session_of_waves(session)

    async def give_way(session: Session) -> None:
        await usual[session.role](session)
        await session.next_segment()
        await session.cancelled_segment()
        await session.report(antiphon.FinishReason.CANCELLED)
        await session.next_segment()
        await usual[session.role](session)

    async with serve_gateway(**QUEUE) as served, realtime(served) as client:
        usual = {role: served.fakes[role].script for role in ROLES}
        session_of_waves = usual[CODE2WAV]
        served.fakes[CODE2WAV].script = full_once
        served.fakes[THINKER].script = served.fakes[TALKER].script = give_way
        await client.say("Hi")
        for _ in range(2):
            await client.send("response.create")
            done = (await client.until("response.done"))["response"]
            assert done["status"] == "completed"
        assert len(served.fakes[CODE2WAV].sessions) == 1


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"temperature": -1}, 400), ({"model": "other"}, 404), ({"n": 2}, 400)],
)
async def test_a_stream_that_fails_before_it_is_queued_has_a_status(
    waiting: WaitingRequests, fields: dict[str, Any], status: int
) -> None:
    async with serve_gateway(max_calls=1, **QUEUE) as served:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        running = ask(served, "first", **TEXT)
        await gate.begun.get()
        assert (await served.chat(stream=True, **TEXT, **fields)).status_code == status
        gate.let_through()
        assert (await running).status_code == 200


async def test_a_stream_that_finds_the_queue_full_has_a_status() -> None:
    async with serve_gateway(max_calls=1) as served:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        running = ask(served, "first", **TEXT)
        await gate.begun.get()
        refused = await served.chat(stream=True, **TEXT)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        with pytest.raises(openai.RateLimitError):
            await served.openai.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        gate.let_through()
        assert (await running).status_code == 200
