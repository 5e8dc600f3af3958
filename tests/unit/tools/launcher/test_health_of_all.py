"""Several stages answer probes as one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon.errors import Unavailable
from antiphon.runtime.server.health import Health
from antiphon.runtime.server.health_endpoint import health_endpoint
from antiphon_tools.launcher.health import HealthOfAll

Status = health_pb2.HealthCheckResponse
WELL, ILL = Status.SERVING, Status.NOT_SERVING


class Together:
    """Two stages, and what is answered for both."""

    def __init__(self, stages: list[Health], endpoints: list[str], stub: object) -> None:
        self.stages, self.endpoints = stages, endpoints
        self._stub = stub

    async def ask(self, name: str) -> int:
        request = health_pb2.HealthCheckRequest(service=name)
        told = await self._stub.Check(request, timeout=240)  # type: ignore[attr-defined]
        return int(told.status)

    async def answers(self) -> tuple[int, int]:
        return await self.ask("ready"), await self.ask("alive")


@asynccontextmanager
async def together(*, answer_s: float = 60) -> AsyncIterator[Together]:
    stages, endpoints = [Health(), Health()], list[str]()
    async with AsyncExitStack() as stack:
        for stage in stages:
            # As in a pod, where it is told on every address.
            endpoint = await stack.enter_async_context(health_endpoint("0.0.0.0:0", stage.probes))
            endpoints.append(endpoint)
            await stage.tell(serving=True)
        address = await stack.enter_async_context(
            health_endpoint("127.0.0.1:0", HealthOfAll(lambda: endpoints, answer_s=answer_s))
        )
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        yield Together(stages, endpoints, health_pb2_grpc.HealthStub(channel))


async def test_all_are_ready_when_each_of_them_is() -> None:
    async with together() as both:
        assert await both.answers() == (WELL, WELL)
        await both.stages[1].tell(serving=False)
        assert await both.answers() == (ILL, WELL)
        await both.stages[1].tell(serving=True)
        assert await both.answers() == (WELL, WELL)


async def test_none_is_alive_when_one_of_them_never_serves_again() -> None:
    async with together() as both:
        both.stages[0].note("engine", Unavailable("the device is lost"), passes=False)
        await asyncio.sleep(0)
        assert await both.answers() == (ILL, ILL)


async def test_stage_without_a_process_is_not_ready_and_alive() -> None:
    async with together() as both:
        both.endpoints[0] = ""
        assert await both.answers() == (ILL, WELL)


async def test_stage_that_answers_nothing_is_not_alive() -> None:
    """Its process hangs: it has the port, and nobody takes what comes there."""
    async with together(answer_s=0.1) as both:
        with socket.create_server(("127.0.0.1", 0)) as hangs:
            both.endpoints[0] = f"127.0.0.1:{hangs.getsockname()[1]}"
            assert await both.ask("alive") == ILL


async def test_nobody_is_ready_before_any_stage_was_started() -> None:
    async with together() as both:
        both.endpoints.clear()
        assert await both.answers() == (ILL, ILL)
