"""The real services, one of them killed: what goes on meanwhile, and what comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import antiphon
from antiphon import SamplingRequest
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.events import LaunchEvent, Loaded
from antiphon_tools.launcher.launcher import Launcher

pytestmark = pytest.mark.processes

Status = health_pb2.HealthCheckResponse.ServingStatus
SPEECH = {"talker": SamplingRequest(temperature=0.0, max_tokens=30)}


class Told:
    """What a launcher reports, waited for."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[LaunchEvent] = asyncio.Queue(maxsize=10_000)

    def __call__(self, event: LaunchEvent) -> None:
        self._events.put_nowait(event)

    async def wait(self, kind: type[LaunchEvent], service: str) -> None:
        """Return with the next event of that kind about the service."""
        while True:
            event = await self._events.get()
            if isinstance(event, kind) and event.service == service:
                return


async def speak(client: antiphon.AsyncClient) -> antiphon.Reply:
    return await client.generate("Hello", max_tokens=20, sampling=SPEECH).collect()


async def wait_serving(watch: Any, status: Status) -> None:
    """Return when the gateway's health service says so."""
    async for response in watch:
        if response.status == status:
            return


async def test_killed_services_come_back_and_speech_with_them(tiny: Path) -> None:
    told = Told()
    async with (
        Launcher(local_deployment(tiny), on_exit="restart", report=told) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
        httpx.AsyncClient(base_url=running.http_url, timeout=240) as http,
        grpc.aio.insecure_channel(running.grpc_address) as channel,
    ):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        before = await speak(client)
        address = running.processes["talker"].address
        await told.wait(Loaded, "gateway")
        os.kill(running.processes["talker"].pid, signal.SIGKILL)
        await wait_serving(watch, Status.NOT_SERVING)
        assert (await client.generate("Hello", modalities=("text",)).collect()).text
        await told.wait(Loaded, "talker")
        await wait_serving(watch, Status.SERVING)
        assert running.processes["talker"].address == address
        after = await speak(client)
        assert (after.text, len(after.pcm16)) == (before.text, len(before.pcm16))

        os.kill(running.processes["gateway"].pid, signal.SIGKILL)
        await told.wait(Loaded, "gateway")
        outputs = (await http.get("/health")).json()["outputs"]
        assert outputs == {"text": True, "audio": True, "tool_calls": True}
        again = await speak(client)
        assert (again.text, len(again.pcm16)) == (before.text, len(before.pcm16))
