"""Conversations of a gateway that is told to stop: a notice, the answer's end, a typed end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

import antiphon
from antiphon.errors import Unavailable
from antiphon_gateway.server import Gateway
from tests.contract.converse_client import said, until
from tests.contract.fake_stages import THINKER, FakeStages
from tests.contract.paused_thinker import Pause
from tests.contract.realtime_client import Realtime, realtime
from tests.contract.served_gateway import ServedGateway, deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG_S = 240.0
SOON = antiphon.Retry(within_s=2.0)
OWN = {"type": "realtime", "antiphon": {"stopping": True}}


class Stopping:
    """A gateway that can be told to stop while its clients go on."""

    def __init__(self, gateway: Gateway, served: ServedGateway, pause: Pause) -> None:
        self.gateway = gateway
        self.served = served
        self.pause = pause
        self._leaving: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """As SIGTERM does; see `gateway/antiphon_gateway/__main__.py`."""
        self._leaving = asyncio.create_task(self.gateway.__aexit__(None, None, None))

    async def stopped(self) -> None:
        assert self._leaving is not None
        await self._leaving


@asynccontextmanager
async def stoppable(drain_s: float = LONG_S) -> AsyncIterator[Stopping]:
    async with asyncio.timeout(LONG_S), FakeStages() as fakes:
        pause = Pause()
        fakes[THINKER].script = pause
        gateway = Gateway(deployment_of(fakes, drain_s=drain_s))
        await gateway.__aenter__()
        await gateway.wait_ready()
        served = ServedGateway(fakes, gateway)
        stopping = Stopping(gateway, served, pause)
        try:
            yield stopping
        finally:
            await stopping.stopped()
            await served.close()


async def answering(client: Realtime, pause: Pause) -> None:
    """Ask, and return when the answer has begun."""
    await client.end_turns_itself()
    await client.say("Hello")
    await client.send("response.create", response={"output_modalities": ["text"]})
    await client.until("response.output_text.delta")
    await pause.begun.wait()


async def ended(client: Realtime) -> dict[str, Any]:
    """The error that is the last event, before a close that asks to come again."""
    error = await client.until("error")
    with pytest.raises(ConnectionClosed) as closed:
        await client.next()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
    return dict(error["error"])


@pytest.mark.parametrize("asked", [True, False])
async def test_an_idle_realtime_conversation_is_told_and_ends_at_once(asked: bool) -> None:
    async with stoppable() as stopping, realtime(stopping.served) as client:
        if asked:
            await client.send("session.update", session=OWN)
            await client.until("session.updated")
        stopping.stop()
        if asked:
            notice = await client.next_of_any_kind()
            assert (notice["type"], notice["within_ms"]) == ("antiphon.stopping", LONG_S * 1000)
        # Every event from here on is validated as one of OpenAI's.
        error = await ended(client)
        assert (error["type"], error["code"]) == ("server_error", "unavailable")
        assert "shutting down" in error["message"]
        await stopping.stopped()


async def test_a_realtime_answer_is_finished_before_its_conversation_ends() -> None:
    async with stoppable() as stopping, realtime(stopping.served) as client:
        await client.send("session.update", session=OWN)
        await client.until("session.updated")
        await answering(client, stopping.pause)
        stopping.stop()
        assert (await client.next_of_any_kind())["type"] == "antiphon.stopping"
        await client.send("response.create", response={"conversation": "none"})
        late = (await client.until("response.done"))["response"]
        assert (late["status"], late["status_details"]["error"]["code"]) == (
            "failed",
            "unavailable",
        )
        stopping.pause.go_on.set()
        done = (await client.until("response.done"))["response"]
        assert done["status"] == "completed"
        assert done["output"][0]["content"][0]["text"] == "Hello"
        await ended(client)
        await stopping.stopped()


async def test_a_realtime_answer_that_outlasts_the_drain_fails_by_type() -> None:
    async with stoppable(0.1) as stopping, realtime(stopping.served) as client:
        await answering(client, stopping.pause)
        stopping.stop()
        done = (await client.until("response.done"))["response"]
        assert (done["status"], done["status_details"]["error"]["code"]) == (
            "failed",
            "unavailable",
        )
        assert (await ended(client))["code"] == "unavailable"
        await stopping.stopped()


@pytest.mark.parametrize("answers", ["none", "in time", "too late"])
async def test_converse_is_told_and_ends_with_unavailable(answers: str) -> None:
    late = answers == "too late"
    async with (
        stoppable(0.1 if late else LONG_S) as stopping,
        # No other gateway comes to this address.
        antiphon.AsyncClient(stopping.gateway.grpc_address, retry=SOON) as client,
        client.converse(spoken=False) as call,
    ):
        if answers != "none":
            await said(call, "Hello")
            await call.respond()
            await until(call, antiphon.ResponseTextDelta)
            await stopping.pause.begun.wait()
        stopping.stop()
        assert (await until(call, antiphon.ServerStopping)).within_s == (0.1 if late else LONG_S)
        stopping.pause.go_on.set() if answers == "in time" else None
        if answers != "none":
            done = await until(call, antiphon.ResponseDone)
            assert done.response.status == ("failed" if late else "completed")
        with pytest.raises(Unavailable, match="shutting down") as end:
            await until(call, antiphon.ResponseDone)
        assert end.value.retry_after_s
        await stopping.stopped()


async def test_converse_does_not_end_as_complete_with_timed_turns_that_are_not_answered() -> None:
    """The client has finished. It has sent two turns at once, and the first is being answered."""
    async with (
        stoppable() as stopping,
        antiphon.AsyncClient(
            stopping.gateway.grpc_address, retry=antiphon.Retry(attempts=1)
        ) as client,
        client.converse(spoken=False, turns=antiphon.TimedTurns(0.5)) as call,
    ):
        await call.send_audio(bytes(2 * 16_000), 16_000)
        call.finish()
        await until(call, antiphon.ResponseTextDelta)
        await stopping.pause.begun.wait()
        stopping.stop()
        await until(call, antiphon.ServerStopping)
        stopping.pause.go_on.set()
        assert (await until(call, antiphon.ResponseDone)).response.status == "completed"
        with pytest.raises(Unavailable, match="shutting down"):
            await anext(call)
        await stopping.stopped()
