"""A deployment whose code2wav can be stopped in every way, and a call to stop it under."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import replace

import antiphon
from antiphon import SamplingRequest
from antiphon.deployment.schema import Deployment, StageConfig, dump_deployment
from antiphon_testkit.gateway_settings import with_settings
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.forking import ForkServer
from antiphon_tools.launcher.launcher import Launcher, Running
from antiphon_tools.launcher.plan import application_root
from antiphon_tools.launcher.process import ServiceProcess

ROLE = "code2wav"
GENEROUS_S = 240.0
# The checkpoint never draws the end of speech, and no stage runs far ahead of the client.
LONG_SPEECH = {"talker": SamplingRequest(temperature=0.0, max_tokens=4000)}
SHORT_SPEECH = {"talker": SamplingRequest(temperature=0.0, max_tokens=20)}


class Stoppable:
    """The code2wav process of a deployment, and what can be done to it."""

    def __init__(
        self,
        directory: Path,
        config: StageConfig,
        model: Path,
        fork_server: ForkServer | None = None,
    ) -> None:
        self._directory, self._fork_server = directory, fork_server
        self._deployment = Deployment(model=str(model), stages={ROLE: config})
        self._fifo = directory / "commands"
        os.mkfifo(self._fifo)
        self._commands = os.open(self._fifo, os.O_RDWR)
        self.process: ServiceProcess

    async def start(self, listen: str) -> None:
        """Start it, at an address or at "host:0"."""
        config = self._directory / "code2wav.yaml"
        config.write_bytes(dump_deployment(self._deployment))
        program = ("tests.integration.stoppable_stage", str(self._fifo), "code2wav")
        argv = (*program, "--config", str(config), "--listen", listen)
        root = application_root()
        self.process = await ServiceProcess.start(
            ROLE, argv, root=root, report=lambda _: None, fork_server=self._fork_server
        )
        await self.process.wait_ready()

    def tell(self, letter: bytes) -> None:
        """Give a command; see `tests.integration.stoppable_stage`."""
        os.write(self._commands, letter)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.process.pid, number)

    async def restart(self) -> None:
        """Start it again where it was once it has ended, as whoever supervises it would."""
        await self.process.report_exit()
        await self.start(self.process.address)

    async def close(self) -> None:
        """End it."""
        self.process.kill()
        await self.process.report_exit()
        os.close(self._commands)


@dataclass(frozen=True)
class Failure:
    """A way to fail: how it begins, how it ends, and what each is called."""

    name: str
    stop: Callable[[Stoppable], None]
    recover: Callable[[Stoppable], Awaitable[None]]


async def _thaw(stage: Stoppable) -> None:
    stage.signal(signal.SIGCONT)


async def _let_go(stage: Stoppable) -> None:
    stage.tell(b"G")


FROZEN = Failure("frozen (SIGSTOP)", lambda stage: stage.signal(signal.SIGSTOP), _thaw)
HUNG_INTERPRETER = Failure("hung interpreter", lambda stage: stage.tell(b"I"), _let_go)
HUNG_ENGINE = Failure("hung engine", lambda stage: stage.tell(b"E"), _let_go)
POISONED = Failure("poisoned device", lambda stage: stage.tell(b"P"), Stoppable.restart)
DEAD = Failure("dead (SIGKILL)", lambda stage: stage.signal(signal.SIGKILL), Stoppable.restart)
FAILURES = (FROZEN, HUNG_INTERPRETER, HUNG_ENGINE, POISONED, DEAD)


@dataclass(frozen=True)
class Outcome:
    """What a call was told; seconds to that, to 503, and from the recovery to 200."""

    error: antiphon.AntiphonError
    error_s: float
    down_s: float
    back_s: float
    health: dict[str, Any]


@asynccontextmanager
async def deployment_with(
    directory: Path,
    model: Path,
    config: StageConfig,
    *,
    probe_timeout_s: float | None = None,
    launcher: type[Launcher] = Launcher,
    fork_server: ForkServer | None = None,
) -> AsyncIterator[tuple[Running, Stoppable]]:
    """A running deployment whose code2wav, of this configuration, is stoppable."""
    async with AsyncExitStack() as stack:
        stage = Stoppable(directory, config, model, fork_server)
        await stage.start("127.0.0.1:0")
        stack.push_async_callback(stage.close)
        where = StageConfig(addresses=(stage.process.address,))
        deployment = local_deployment(model, code2wav=where)
        if probe_timeout_s is not None:
            gateway = with_settings(deployment.gateway, probe_timeout_s=probe_timeout_s)
            deployment = replace(deployment, gateway=gateway)
        running = await stack.enter_async_context(launcher(deployment))
        yield running, stage


async def fail(running: Running, stage: Stoppable, failure: Failure) -> Outcome:
    """Stop the stage under a running call, look at everything, and let it recover.

    Raises `AssertionError` when a call ends otherwise than it should.
    """
    async with (
        asyncio.timeout(GENEROUS_S),
        antiphon.AsyncClient(running.grpc_address) as client,
        httpx.AsyncClient(base_url=running.http_url, timeout=GENEROUS_S) as http,
    ):
        speaking = client.generate("day one", max_tokens=200, sampling=LONG_SPEECH)
        async for event in speaking:
            if isinstance(event, antiphon.AudioDelta):
                break
        stopped_at = time.monotonic()
        failure.stop(stage)
        down = asyncio.create_task(_wait_health(http, 503))
        error = await _error_of(speaking)
        error_s = time.monotonic() - stopped_at
        health, down_at = await down
        refused = await _error_of(client.generate("Hello", max_tokens=8))
        assert ROLE in refused.message, refused
        text = await client.generate("Hello", modalities=("text",), max_tokens=8).collect()
        assert text.text
        recovered_at = time.monotonic()
        await failure.recover(stage)
        _, back_at = await _wait_health(http, 200)
        reply = await client.generate("Hello", max_tokens=8, sampling=SHORT_SPEECH).collect()
        assert reply.pcm16
        return Outcome(error, error_s, down_at - stopped_at, back_at - recovered_at, health)


async def _error_of(generation: AsyncIterator[object]) -> antiphon.AntiphonError:
    """What ends an answer that must not end well."""
    try:
        async for _ in generation:
            pass
    except antiphon.AntiphonError as error:
        return error
    raise AssertionError("the answer ended as if nothing had happened")


async def _wait_health(http: httpx.AsyncClient, status: int) -> tuple[dict[str, Any], float]:
    """The first report with that status, and when it was there.

    It changes with a message that only the gateway gets.
    """
    while True:
        response = await http.get("/health")
        if response.status_code == status:
            report: dict[str, Any] = response.json()
            return report, time.monotonic()
        await asyncio.sleep(0.02)
