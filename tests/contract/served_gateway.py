"""A gateway on real sockets in front of fake stages, with clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import openai

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon_gateway.server import Gateway
from antiphon_testkit.gateway_settings import gateway_config
from tests.contract.fake_stages import FakeStages

MODEL = "fake-omni"
HELD = "antiphon_gateway_memory_bytes{"
MESSAGES: list[Any] = [{"role": "user", "content": "Hi"}]
SPOKEN: dict[str, Any] = {
    "modalities": ["text", "audio"],
    "audio": {"voice": "ethan", "format": "pcm16"},
}


def deployment_of(
    fakes: FakeStages | None = None, *, delivery: dict[str, Any] | None = None, **gateway: Any
) -> Deployment:
    """A deployment of the fakes, both endpoints on free ports."""
    settings: dict[str, Any] = {
        "http_listen": "127.0.0.1:0",
        "grpc_listen": "127.0.0.1:0",
        "max_body_bytes": 1 << 20,
        "reconnect_s": 0.1,
        "drain_s": 0.1,
        # Between tests the loop stands still, and the time of a probe passes.
        "probe_timeout_s": 60.0,
        # What finds a stage dead is refused soon.
        "failover_return_s": 0.1,
        # What finds no slot is refused, unless a test says otherwise.
        "max_waiting": 0,
    }
    return Deployment(
        stages={r: StageConfig(addresses=(s.address,)) for r, s in fakes.by_role.items()}
        if fakes
        else {},
        gateway=gateway_config(**(settings | gateway)),
        delivery=delivery or {},
    )


def tell_anew(gateway: Gateway) -> None:
    """Have the gateway take up what a test has changed in what a stage told: the line-ups and
    options that follow from it are derived once."""
    gateway.fleet._on_change()


def answering() -> set[asyncio.Task[Any]]:
    """The tasks of uvicorn that answer requests, or serve a WebSocket, of any gateway."""
    return {each for each in asyncio.all_tasks() if work_of(each).endswith(".run_asgi")}


def work_of(task: asyncio.Task[Any]) -> str:
    """The name of the coroutine function that a task runs."""
    return getattr(task.get_coro(), "__qualname__", "")


class ServedGateway:
    """A running gateway with its stages and clients."""

    def __init__(self, fakes: FakeStages, gateway: Gateway) -> None:
        self.fakes = fakes
        self.gateway = gateway
        self.url = f"http://{gateway.http_address}"
        self.http = httpx.AsyncClient(base_url=self.url, timeout=240)
        self.openai = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    async def chat(self, **fields: Any) -> httpx.Response:
        """Post a chat request that is good but for the given fields."""
        body = {"model": MODEL, "messages": MESSAGES, **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def metric(self, sample: str) -> float:
        """The value of a sample of /metrics; 0 when it is not there."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(sample)), 0.0)

    async def held(self) -> dict[str, float]:
        """The bytes that the gateway holds, of each holder that has any."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        given = ([*line.split('"')[1::2], line.split()[-1]] for line in lines if HELD in line)
        return {holder: float(size) for holder, size in given if float(size)}

    async def close(self) -> None:
        await self.http.aclose()
        await self.openai.close()


@asynccontextmanager
async def serve_gateway(
    prepare: Callable[[FakeStages], None] = lambda _: None, **settings: Any
) -> AsyncIterator[ServedGateway]:
    """Fake stages, a gateway in front of them once they are prepared, and clients."""
    async with AsyncExitStack() as stack:
        fakes = await stack.enter_async_context(FakeStages())
        prepare(fakes)
        running = await stack.enter_async_context(Gateway(deployment_of(fakes, **settings)))
        await running.wait_ready()
        served = ServedGateway(fakes, running)
        try:
            yield served
        finally:
            await served.close()
