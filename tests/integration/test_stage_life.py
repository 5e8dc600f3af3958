"""A stage that is frozen, hangs or dies under a running call: a typed error, 503, and recovery.

The stage is code2wav, with the real thinker, talker and gateway as processes beside it. How
long each took is printed (`-s` shows it); `python -m benchmarks.failures` is the same, repeated.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import antiphon
from antiphon import SamplingRequest
from antiphon.deployment.launcher import Launcher, Running
from antiphon.deployment.plan import application_root
from antiphon.deployment.process import ServiceProcess
from antiphon.deployment.schema import Deployment, StageConfig, dump_deployment
from antiphon.errors import Unavailable
from antiphon.testing.local_deployment import local_deployment

pytestmark = [pytest.mark.processes, pytest.mark.asyncio]

ROLE = "code2wav"
GENEROUS_S = 120.0
# The checkpoint never draws the end of speech, and nobody takes more than the client does.
LONG_SPEECH = SamplingRequest(temperature=0.0, max_tokens=4000)


class Stoppable:
    """The code2wav process of a deployment, and what can be done to it."""

    def __init__(self, directory: Path, config: StageConfig, model: Path) -> None:
        self._directory = directory
        self._deployment = Deployment(model=str(model), stages={ROLE: config})
        self._fifo = directory / "commands"
        os.mkfifo(self._fifo)
        self._commands = os.open(self._fifo, os.O_RDWR)
        self.process: ServiceProcess

    async def start(self, listen: str) -> None:
        """Start it, at the address of before if it is one."""
        config = self._directory / "code2wav.yaml"
        config.write_bytes(dump_deployment(self._deployment))
        program = ("tests.integration.stoppable_stage", str(self._fifo))
        argv = (*program, "--config", str(config), "--listen", listen)
        root = application_root()
        self.process = await ServiceProcess.start(ROLE, argv, root=root, report=lambda _: None)
        await self.process.ready

    def tell(self, letter: bytes) -> None:
        """Give a command; see `stoppable_stage`."""
        os.write(self._commands, letter)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    async def restart(self) -> None:
        """Start it again where it was, as whoever supervises it would."""
        await self.process.report_exit()
        await self.start(self.process.address)

    async def close(self) -> None:
        self.process.kill()
        await self.process.report_exit()
        os.close(self._commands)


@asynccontextmanager
async def deployment_with(directory: Path, model: Path) -> AsyncIterator[tuple[Running, Stoppable]]:
    """A running deployment whose code2wav is stoppable."""
    async with AsyncExitStack() as stack:
        stage = Stoppable(directory, StageConfig(), model)
        await stage.start("127.0.0.1:0")
        stack.push_async_callback(stage.close)
        where = StageConfig(addresses=(stage.process.address,))
        running = await stack.enter_async_context(Launcher(local_deployment(model, code2wav=where)))
        yield running, stage


async def wait_health(http: httpx.AsyncClient, status: int) -> tuple[dict[str, Any], float]:
    """The first report with that status, and when it was there.

    It changes with a message that only the gateway gets.
    """
    while True:
        response = await http.get("/health")
        if response.status_code == status:
            report: dict[str, Any] = response.json()
            return report, time.monotonic()
        await asyncio.sleep(0.02)


async def fails_and_recovers(
    running: Running,
    name: str,
    stop: Callable[[], None],
    recover: Callable[[], Awaitable[None]],
) -> antiphon.AntiphonError:
    """Stop the stage under a running call; returns that call's error, all being well again."""
    async with (
        asyncio.timeout(GENEROUS_S),
        antiphon.AsyncClient(running.grpc_address) as client,
        httpx.AsyncClient(base_url=running.http_url, timeout=GENEROUS_S) as http,
    ):
        speaking = client.generate("day one", max_tokens=200, talker=LONG_SPEECH)
        async for event in speaking:
            if isinstance(event, antiphon.AudioDelta):
                break
        began = time.monotonic()
        stop()
        down = asyncio.create_task(wait_health(http, 503))
        with pytest.raises(antiphon.AntiphonError) as caught:
            async for _ in speaking:
                pass
        error_s = time.monotonic() - began
        report, down_at = await down
        down_s = down_at - began
        assert ROLE in report["reason"]
        assert not report["stages"][ROLE]["ready"]
        with pytest.raises(Unavailable, match=ROLE):
            await client.generate("Hello", max_tokens=8).collect()
        assert (await client.generate("Hello", modalities=("text",), max_tokens=8).collect()).text
        began = time.monotonic()
        await recover()
        _, back_at = await wait_health(http, 200)
        back_s = back_at - began
        reply = await client.generate(
            "Hello", max_tokens=8, talker=SamplingRequest(temperature=0.0, max_tokens=20)
        ).collect()
        assert reply.pcm16
        print(f"{name}: error {error_s:.2f} s, seen down by {down_s:.2f} s, back {back_s:.2f} s")
        return caught.value


async def test_frozen_hung_and_dead_stage_end_calls_are_told_and_recover(
    talkative: Path, tmp_path: Path
) -> None:
    async with deployment_with(tmp_path, talkative) as (running, stage):

        async def thaw() -> None:
            stage.signal(signal.SIGCONT)

        error = await fails_and_recovers(
            running, "frozen", lambda: stage.signal(signal.SIGSTOP), thaw
        )
        assert isinstance(error, Unavailable)
        assert error.stage == ROLE

        async def let_go() -> None:
            stage.tell(b"G")

        error = await fails_and_recovers(
            running, "hung interpreter", lambda: stage.tell(b"I"), let_go
        )
        assert isinstance(error, Unavailable)
        assert error.stage == ROLE
        assert "probe" in error.message

        error = await fails_and_recovers(
            running, "dead", lambda: stage.signal(signal.SIGKILL), stage.restart
        )
        assert isinstance(error, Unavailable)
        assert error.stage == ROLE
