"""Clients of a gateway that is told to stop, while another one serves at the same address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import openai
import pytest

import antiphon
from antiphon_gateway.server import Gateway
from tests.cluster.service_address import ServiceAddress
from tests.contract.fake_stages import THINKER, USUAL, FakeStages
from tests.contract.paused_thinker import Pause
from tests.contract.served_gateway import MESSAGES, MODEL, deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG_S = 240.0
SAID = "Hello wörld!"


@dataclass
class Pair:
    """Two gateways behind one address for each endpoint. All connections go to the first one, until
    it leaves; then new ones go to the second."""

    fakes: FakeStages
    pause: Pause
    gateways: list[Gateway]
    http: ServiceAddress
    grpc: ServiceAddress
    leaving: asyncio.Task[None] | None = None

    async def leave(self) -> None:
        """Have the first one told to stop, which has an answer to finish."""
        await self.pause.begun.wait()
        self.fakes[THINKER].script = USUAL[THINKER]
        first = self.gateways.pop(0)
        self.leaving = asyncio.create_task(first.__aexit__(None, None, None))
        await first.calls.wait_closing()

    async def finish(self) -> None:
        """Let the first one's answer end, and it with that."""
        self.pause.go_on.set()
        if self.leaving is not None:
            await self.leaving


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        fakes = await stack.enter_async_context(FakeStages())
        fakes[THINKER].script = pause = Pause()
        gateways = [Gateway(deployment_of(fakes, drain_s=LONG_S)) for _ in range(2)]
        for gateway in gateways:
            await gateway.__aenter__()
            await gateway.wait_ready()
        serving = list(gateways)
        http = ServiceAddress(lambda: [each.http_address for each in serving[:1]])
        grpc = ServiceAddress(lambda: [each.grpc_address for each in serving[:1]])
        await stack.enter_async_context(http)
        await stack.enter_async_context(grpc)
        two = Pair(fakes, pause, serving, http, grpc)
        try:
            yield two
        finally:
            await two.finish()
            for gateway in serving:
                await gateway.__aexit__(None, None, None)


async def test_a_grpc_client_goes_elsewhere_when_its_gateway_is_told_to_stop() -> None:
    async with pair() as two, antiphon.AsyncClient(two.grpc.address) as client:
        running = asyncio.create_task(client.generate("Hi", modalities=("text",)).collect())
        await two.leave()
        for _ in range(3):
            reply = await client.generate("Hi", modalities=("text",)).collect()
            assert reply.text == SAID
        assert not running.done()
        await two.finish()
        assert (await running).text == "Hello"


async def test_an_http_client_goes_elsewhere_when_its_gateway_is_told_to_stop() -> None:
    async with pair() as two:
        client = openai.AsyncOpenAI(base_url=f"http://{two.http.address}/v1", api_key="none")
        async with client:

            async def ask() -> str | None:
                answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
                return answer.choices[0].message.content

            # It has a connection that is idle and one that is not.
            assert (await client.models.list()).data
            running = asyncio.create_task(ask())
            assert (await client.models.list()).data
            await two.leave()
            for _ in range(3):
                assert await ask() == SAID
            assert not running.done()
            await two.finish()
            assert await running == "Hello"
