"""Fake stages with several replicas each, behind one gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx

from antiphon.deployment.schema import StageConfig
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.server import Gateway
from tests.contract.fake_stages import CODE2WAV, ROLES, TALKER, THINKER, USUAL, FakeStage, describe
from tests.contract.served_gateway import MESSAGES, MODEL, deployment_of


class Replicas:
    """A gateway with its fakes by role, and a client. Each fake has a boot id of its own."""

    def __init__(self, fakes: dict[str, list[FakeStage]], gateway: Gateway) -> None:
        self.fakes = fakes
        self.gateway = gateway
        self.http = httpx.AsyncClient(base_url=f"http://{gateway.http_address}", timeout=240)

    async def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": MESSAGES, **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    def sessions(self, role: str = THINKER) -> list[int]:
        """How many each replica has had."""
        return [len(fake.sessions) for fake in self.fakes[role]]

    def replica(self, fake: FakeStage) -> Replica:
        """What the gateway knows of a fake."""
        return next(each for each in self.gateway.fleet[fake.role] if each.address == fake.address)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when the fleet has changed so that it holds."""
        while not holds():
            await self.gateway.fleet.wait_changed()


@asynccontextmanager
async def open_replicas(
    *,
    thinker: int = 1,
    talker: int = 1,
    code2wav: int = 1,
    prepare: Callable[[dict[str, list[FakeStage]]], None] = lambda _: None,
    **settings: Any,
) -> AsyncIterator[Replicas]:
    """So many replicas of each stage, once they are prepared and the gateway knows all of them."""
    counts = {THINKER: thinker, TALKER: talker, CODE2WAV: code2wav}
    fakes = {
        role: [FakeStage(role, USUAL[role], describe(role)) for _ in range(counts[role])]
        for role in ROLES
    }
    every = [fake for stage in fakes.values() for fake in stage]
    for number, fake in enumerate(every):
        fake.description.boot_id = f"boot-{number}"
    prepare(fakes)
    async with AsyncExitStack() as stack:
        for fake in every:
            await fake.start()
            stack.push_async_callback(fake.die)
        deployment = deployment_of(**settings)
        for role, stage in fakes.items():
            addresses = tuple(fake.address for fake in stage)
            deployment.stages[role] = StageConfig(addresses=addresses)
        gateway = await stack.enter_async_context(Gateway(deployment))
        opened = Replicas(fakes, gateway)
        stack.push_async_callback(opened.http.aclose)
        fleet = gateway.fleet
        await opened.until(lambda: all(each.serving == counts[each.role] for each in fleet))
        yield opened
