"""Two gateways in front of the real services, one of them killed: only its own clients notice."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

import antiphon
from antiphon import SamplingRequest
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.events import Exited, Loaded
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.unit.tools.launcher.test_several_gateways import Told

pytestmark = pytest.mark.processes

LONG_S = 480.0
GATEWAYS = ("gateway", "gateway#2")


class Caller:
    """A client on a connection of its own, with a conversation."""

    def __init__(self, client: antiphon.AsyncClient, call: antiphon.AsyncConversationCall) -> None:
        self.client, self.call = client, call
        self.opened = 0

    async def ask(self) -> None:
        """Have a response completed, and count how often the conversation is opened meanwhile."""
        await self.call.add("Hello")
        await self.call.respond(sampling={"": SamplingRequest(max_tokens=4)})
        async for event in self.call:
            if isinstance(event, antiphon.ConversationOpened):
                self.opened += 1
            elif isinstance(event, antiphon.ResponseDone):
                assert event.response.status in ("completed", "incomplete"), event.response.error
                return
        raise AssertionError("the conversation has ended")


async def conversations(running: Running) -> Counter[str]:
    """How many conversations each gateway has."""
    found: Counter[str] = Counter()
    async with httpx.AsyncClient(timeout=LONG_S) as http:
        for name in GATEWAYS:
            text = (await http.get(running.processes[name].metrics_url)).text
            (value,) = re.findall(r"^antiphon_gateway_conversations (\S+)$", text, re.MULTILINE)
            found[name] = int(float(value))
    return found


async def call_each_gateway(running: Running, stack: AsyncExitStack) -> dict[Caller, str]:
    """Conversations, at least one at each gateway, and where they are."""
    where: dict[Caller, str] = {}
    while set(where.values()) != set(GATEWAYS):
        before = await conversations(running)
        client = await stack.enter_async_context(antiphon.AsyncClient(running.grpc_address))
        call = await stack.enter_async_context(client.converse(spoken=False))
        caller = Caller(client, call)
        await caller.ask()
        (where[caller],) = await conversations(running) - before
    return where


async def test_killed_gateway_takes_its_own_calls_alone_and_its_clients_go_on_at_the_other(
    tiny: Path,
) -> None:
    told = Told()
    launcher = WarmLauncher(local_deployment(tiny), gateways=2, on_exit="restart", report=told)
    async with asyncio.timeout(LONG_S), launcher as running, AsyncExitStack() as stack:
        where = await call_each_gateway(running, stack)
        for caller in where:
            caller.opened = 0
        killed = running.processes["gateway#2"]
        os.kill(killed.pid, signal.SIGKILL)
        await killed.wait()
        await asyncio.gather(*(each.ask() for each in where))
        for caller, gateway in where.items():
            assert caller.opened == (1 if gateway == "gateway#2" else 0)
        async with httpx.AsyncClient(base_url=running.http_url, timeout=LONG_S) as http:
            assert (await http.get("/health")).status_code == 200
            assert (await http.get("/metrics")).status_code == 404
        await told.wait(Loaded, "gateway#2", 2)
        assert running.processes["gateway#2"].metrics_url == killed.metrics_url
    ended = {each.service: each.status for each in told.events if isinstance(each, Exited)}
    assert ended == dict.fromkeys(running.processes, 0)
