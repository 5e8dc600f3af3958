from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import httpx
import numpy as np
import openai
import pytest

from antiphon.errors import (
    AntiphonError,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    ResourceExhausted,
    Unavailable,
)
from antiphon.v1 import session_pb2
from antiphon.values.segment import FinishReason
from tests.contract.fake_stages import CODE2WAV, ROLES, TALKER, THINKER, Session, stall, think
from tests.contract.raw_http import chat_body, post, raw_client
from tests.contract.served_gateway import (
    MESSAGES,
    MODEL,
    SPOKEN,
    ServedGateway,
    serve_gateway,
    tell_anew,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

GENEROUS_S = 120.0


def refusing(error: AntiphonError) -> Any:
    async def refuse(session: Session) -> None:
        await session.opened()
        await session.error(error)

    return refuse


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error in a response or at the end of a stream."""
    text = response.text.rstrip().split("\n\n")[-1].removeprefix("data: ")
    error: dict[str, Any] = json.loads(text)["error"]
    return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ResourceExhausted("all slots are taken", retry_after_s=3.0), 429),
        (FailedPrecondition("another checkpoint"), 503),
        (DeadlineExceeded("stalled", edge="codes"), 504),
        (Internal("broke"), 500),
        (DataLoss("a gap", edge="codes"), 500),
        (Unavailable("draining"), 503),
        (Cancelled("gone"), 503),
    ],
)
async def test_chat_has_the_status_of_what_a_stage_says(
    served: ServedGateway, error: AntiphonError, status: int
) -> None:
    served.fakes[TALKER].script = refusing(error)
    response = await served.chat(**SPOKEN)
    assert response.status_code == status
    assert error_of(response)["message"].endswith(error.message)
    retryable = error_of(response)["code"] in ("unavailable", "resource_exhausted")
    assert response.headers["x-should-retry"] == str(retryable).lower()
    wait = {429: "3", 503: "1"}[status] if retryable else None
    assert response.headers.get("retry-after") == wait


async def test_stream_has_the_status_of_a_stage_without_a_slot(served: ServedGateway) -> None:
    """Though the others have opened their parts and the thinker has spoken."""
    spoke = asyncio.Event()

    async def speak(session: Session) -> None:
        await session.opened()
        await session.text("too soon")
        spoke.set()
        await asyncio.Event().wait()

    async def refuse(session: Session) -> None:
        await spoke.wait()
        await session.error(ResourceExhausted("all slots are taken", retry_after_s=3.0))

    served.fakes[THINKER].script, served.fakes[TALKER].script = speak, refuse
    response = await served.chat(stream=True, **SPOKEN)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"


async def test_chat_cancels_all_stages_when_one_refuses(served: ServedGateway) -> None:
    served.fakes[THINKER].script = served.fakes[CODE2WAV].script = stall

    async def refuse_last(session: Session) -> None:
        await served.fakes.wait_begun(THINKER, CODE2WAV)
        await session.error(ResourceExhausted("all slots are taken"))

    served.fakes[TALKER].script = refuse_last
    assert (await served.chat(**SPOKEN)).status_code == 429
    for role in (THINKER, CODE2WAV):
        await served.fakes[role].sessions[0].cancelled.wait()


@pytest.mark.parametrize("role", ROLES)
async def test_stream_ends_with_unavailable_naming_the_stage_that_dies(role: str) -> None:
    begun = asyncio.Event()

    async def begin(session: Session) -> None:
        await session.opened()
        await session.text("begun")
        begun.set()
        await asyncio.Event().wait()

    async with serve_gateway() as served:
        for each in ROLES:
            served.fakes[each].script = stall
        served.fakes[THINKER].script = begin
        asking = asyncio.create_task(served.chat(stream=True, **SPOKEN))
        await begun.wait()
        await served.fakes.wait_begun()
        await served.fakes[role].die()
        error = error_of(await asking)
        assert error["code"] == "unavailable"
        assert f"the stage {role} at {served.fakes[role].address} was lost" in error["message"]
        for other in set(ROLES) - {role}:
            await served.fakes[other].sessions[0].cancelled.wait()
        assert await served.metric(
            f'antiphon_gateway_errors_total{{code="unavailable",stage="{role}"}}'
        )


@pytest.mark.parametrize("way", ["error", "suspended"])
async def test_the_death_of_a_stage_is_told_and_not_its_neighbours_echo(way: str) -> None:
    echo = asyncio.Event()
    echoed = asyncio.Event()

    async def notice(session: Session) -> None:
        await session.opened()
        await echo.wait()
        if way == "error":
            await session.error(Unavailable("the link was lost", stage=TALKER, edge="codes"))
        else:
            lost = session_pb2.SessionSuspended(edge="codes", address="127.0.0.1:1")
            await session.context.write(session_pb2.SessionResponse(suspended=lost))
        echoed.set()

    async with serve_gateway() as served:
        # As a real stage does, it ends its stream after an error.
        served.fakes[CODE2WAV].ends_itself = way == "error"
        served.fakes[THINKER].script = served.fakes[TALKER].script = stall
        served.fakes[CODE2WAV].script = notice
        asking = asyncio.create_task(served.chat(**SPOKEN))
        echo.set()
        await echoed.wait()
        await served.fakes[TALKER].die()
        response = await asking
        assert response.status_code == 503
        assert f"the stage {TALKER} at" in error_of(response)["message"]


async def test_a_suspended_stage_goes_on_when_its_link_heals() -> None:
    async def heals(session: Session) -> None:
        await session.opened()
        lost = session_pb2.SessionSuspended(edge="codes", address="127.0.0.1:1")
        await session.context.write(session_pb2.SessionResponse(suspended=lost))
        await usual(session)

    async with serve_gateway() as served:
        usual = served.fakes[CODE2WAV].script
        served.fakes[CODE2WAV].script = heals
        response = await served.chat(**SPOKEN)
        assert response.status_code == 200
        assert response.json()["choices"][0]["message"]["audio"]["data"]


async def test_an_echo_is_told_when_no_cause_follows(served: ServedGateway) -> None:
    served.fakes[THINKER].script = served.fakes[TALKER].script = stall
    error = Unavailable("the link was lost", stage=TALKER, edge="codes")
    served.fakes[CODE2WAV].script = refusing(error)
    response = await served.chat(**SPOKEN)
    assert (response.status_code, error_of(response)["message"]) == (503, "the link was lost")


async def test_chat_is_refused_at_once_when_a_stage_is_down_and_served_when_it_is_back() -> None:
    async with serve_gateway() as served:
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        await served.fakes[TALKER].die()
        assert not await anext(ready)
        response = await served.chat(**SPOKEN)
        assert response.status_code == 503
        address = served.fakes[TALKER].address
        assert f"the stage {TALKER} at {address} is down" in error_of(response)["message"]
        assert not served.fakes[THINKER].sessions
        assert (await served.chat()).status_code == 200, "text needs no talker"
        with pytest.raises(openai.InternalServerError):
            await served.openai.chat.completions.create(model=MODEL, messages=MESSAGES, **SPOKEN)
        await served.fakes[TALKER].start()
        assert await anext(ready)
        assert (await served.chat(**SPOKEN)).status_code == 200
        await ready.aclose()


async def test_chat_is_refused_while_a_stage_is_not_serving(served: ServedGateway) -> None:
    ready = served.gateway.fleet.readiness()
    assert await anext(ready)
    await served.fakes[THINKER].set_serving(False)
    assert not await anext(ready)
    response = await served.chat()
    await served.fakes[THINKER].set_serving(True)
    assert await anext(ready)
    await ready.aclose()
    assert response.status_code == 503
    assert "NOT_SERVING" in error_of(response)["message"]


@pytest.mark.parametrize("name", ["checkpoint_fingerprint", "pipeline"])
async def test_chat_is_refused_when_stages_do_not_fit_together(
    served: ServedGateway, name: str
) -> None:
    description = served.gateway.fleet[TALKER].require()
    before = getattr(description, name)
    setattr(description, name, "other")
    tell_anew(served.gateway)
    try:
        response = await served.chat(**SPOKEN)
        health = await served.http.get("/health")
        text_only = await served.chat()
    finally:
        setattr(description, name, before)
        tell_anew(served.gateway)
    assert response.status_code == 503
    error = error_of(response)
    assert error["code"] == "failed_precondition"
    assert f"different values for {name}" in error["message"]
    assert health.status_code == 503
    assert f"different values for {name}" in health.json()["reason"]
    assert text_only.status_code == 200


async def test_chat_is_a_504_naming_the_stages_that_say_nothing() -> None:
    # Time enough for the others to finish.
    async with serve_gateway(idle_timeout_s=3) as served:
        served.fakes[CODE2WAV].script = stall
        response = await served.chat(**SPOKEN)
        assert response.status_code == 504
        error = error_of(response)
        assert error["code"] == "deadline_exceeded"
        assert error["message"].endswith(f"unfinished stages: {CODE2WAV}")
        await served.fakes[CODE2WAV].sessions[0].cancelled.wait()


async def test_chat_is_a_504_when_the_request_takes_too_long() -> None:
    async def drip(session: Session) -> None:
        begun.append(session)
        await session.opened()
        while True:
            await session.report(output_positions=1)
            await asyncio.sleep(0.02)

    # Twice as long each time, until the session has begun by then.
    timeout_s, begun = 0.15, list[Session]()
    while not begun:
        timeout_s *= 2
        async with serve_gateway(request_timeout_s=timeout_s) as served:
            served.fakes[THINKER].script = drip
            response = await served.chat()
            assert response.status_code == 504
            assert "the request timed out" in error_of(response)["message"]
    assert 0 < begun[0].segment.deadline_s <= timeout_s


async def test_chat_is_a_500_when_a_chunk_was_lost(served: ServedGateway) -> None:
    async def skip(session: Session) -> None:
        await session.opened()
        await session.text("One")
        await session.text("three", skip=1)

    served.fakes[THINKER].script = skip
    response = await served.chat()
    assert response.status_code == 500
    assert error_of(response)["code"] == "data_loss"


async def test_chat_is_a_500_when_a_stage_ends_before_it_has_finished(
    served: ServedGateway,
) -> None:
    async def leave(session: Session) -> None:
        await session.opened()
        await session.text("One")

    fake = served.fakes[THINKER]
    fake.script, fake.ends_itself = leave, True
    response = await served.chat()
    assert response.status_code == 500
    assert "before it had finished text" in error_of(response)["message"]


async def test_stream_is_a_429_when_the_talker_refuses_after_the_thinker_has_answered(
    served: ServedGateway,
) -> None:
    answered = asyncio.Event()

    async def answer(session: Session) -> None:
        await think(session)
        answered.set()

    async def refuse(session: Session) -> None:
        await answered.wait()
        await session.error(ResourceExhausted("all slots are taken"))

    served.fakes[THINKER].script, served.fakes[TALKER].script = answer, refuse
    response = await served.chat(stream=True, **SPOKEN)
    assert response.status_code == 429


async def test_no_task_is_left_when_a_stage_has_ended_the_stream(served: ServedGateway) -> None:
    async def leave(session: Session) -> None:
        await session.opened()

    fake = served.fakes[THINKER]
    fake.script, fake.ends_itself = leave, True
    assert (await served.chat()).status_code == 500
    await served.gateway.calls.wait_idle()
    sending = [t for t in asyncio.all_tasks() if "_consume_request" in str(t.get_coro())]
    _, pending = await asyncio.wait(sending, timeout=GENEROUS_S) if sending else ((), ())
    assert not pending


async def test_chat_is_unavailable_when_a_stage_cancels_the_session(served: ServedGateway) -> None:
    async def give_up(session: Session) -> None:
        await session.opened()
        await session.context.abort(grpc.StatusCode.CANCELLED, "enough")

    served.fakes[THINKER].script = give_up
    response = await served.chat()
    assert response.status_code == 503
    assert f"the stage {THINKER} at" in error_of(response)["message"]


async def test_chat_is_an_error_when_text_is_not_utf8(served: ServedGateway) -> None:
    async def babble(session: Session) -> None:
        await session.opened()
        tensors = {"ids": np.zeros(1, np.int32), "utf8": np.array([0xFF], np.uint8)}
        await session.chunk("text", tensors, finish=FinishReason.STOP)

    served.fakes[THINKER].script = babble
    response = await served.chat()
    assert (response.status_code, error_of(response)["code"]) == (500, "data_loss")


async def test_a_failed_request_leaves_the_next_one_alone(served: ServedGateway) -> None:
    served.fakes[THINKER].script = refusing(Internal("broke"))
    assert (await served.chat()).status_code == 500
    served.fakes[THINKER].script = think
    assert (await served.chat()).status_code == 200


async def test_a_client_that_leaves_while_a_stage_still_ends_its_stream_frees_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon_gateway.sessions.session_lines.CLOSE_WAIT_S", 600.0)
    ending = asyncio.Event()

    async def end_slowly(session: Session) -> None:
        await think(session)
        async for _ in session.requests:
            raise AssertionError("nothing may follow")
        ending.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(120), serve_gateway() as served:
        served.fakes[THINKER].script = end_slowly
        async with raw_client(served) as client:
            await client.send(post(chat_body()))
            await ending.wait()
        (session,) = served.fakes[THINKER].sessions
        await session.cancelled.wait()
        await served.gateway.calls.wait_idle()
        (replica,) = served.gateway.fleet[THINKER]
        assert not replica._holders
