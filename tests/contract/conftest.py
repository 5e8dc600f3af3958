from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from gateway.server import Gateway
from tests.contract.fake_stages import FakeStages


def deployment_of(fakes: FakeStages, **gateway: Any) -> Deployment:
    """A deployment of the fakes, both doors on free ports."""
    settings: dict[str, Any] = {
        "http_listen": "127.0.0.1:0",
        "grpc_listen": "127.0.0.1:0",
        "max_body_bytes": 1 << 20,
        "reconnect_s": 0.1,
    }
    return Deployment(
        stages={r: StageConfig(addresses=(s.address,)) for r, s in fakes.by_role.items()},
        gateway=GatewayConfig(**(settings | gateway)),
    )


class Door:
    """A running gateway with its stages and a client for each protocol."""

    def __init__(self, fakes: FakeStages, gateway: Gateway) -> None:
        self.fakes = fakes
        self.gateway = gateway
        self.url = f"http://{gateway.http_address}"
        self.http = httpx.AsyncClient(base_url=self.url, timeout=30)
        self.openai = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    async def chat(self, **fields: Any) -> httpx.Response:
        """Post a chat request that is good but for the given fields."""
        body = {"model": "fake-omni", "messages": [{"role": "user", "content": "Hi"}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def metric(self, sample: str) -> float:
        """The value of a sample of /metrics; 0 when it is not there."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(sample)), 0.0)

    async def close(self) -> None:
        await self.http.aclose()
        await self.openai.close()


@asynccontextmanager
async def open_door(**gateway: Any) -> AsyncIterator[Door]:
    """Fake stages, a gateway in front of them, and clients."""
    async with FakeStages() as fakes:
        async with Gateway(deployment_of(fakes, **gateway), grace_s=0.1) as running:
            await running.wait_ready()
            door = Door(fakes, running)
            try:
                yield door
            finally:
                await door.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_door() -> AsyncIterator[Door]:
    async with open_door() as door:
        yield door


@pytest.fixture
def door(shared_door: Door, caplog: pytest.LogCaptureFixture) -> Door:
    """The shared gateway, its stages with their usual scripts."""
    caplog.set_level(logging.INFO, logger="gateway.requests")
    shared_door.fakes.reset()
    return shared_door
