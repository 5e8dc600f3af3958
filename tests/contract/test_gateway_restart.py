"""The SDK with its defaults, while its only gateway is killed and started again at its address."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

import antiphon
from antiphon.client.events import AudioDelta, TextDelta
from antiphon.client.retrying import Retry
from antiphon.deployment.schema import dump_deployment
from tests.contract.converse_client import said, until
from tests.contract.fake_stages import (
    CODE2WAV,
    FRAMES,
    TEXTS,
    FakeStages,
    Session,
    make_waves,
    samples_of,
)
from tests.contract.gateway_process import gateway_process
from tests.contract.served_gateway import deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG_S = 240.0
TEXT, SAMPLES = "".join(TEXTS), samples_of(sum(FRAMES), 0)


async def first_piece_alone(session: Session) -> None:
    """A code2wav that makes one piece of audio, and then waits for its gateway to be lost."""
    await session.opened()
    await session.audio(FRAMES[0], 0)
    await asyncio.Event().wait()


class FailedTries(logging.Handler):
    """Counts what the SDK logs of calls that have failed and are made again."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._most = threading.Semaphore(0)

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("attempt %d failed") and record.args[0] > Retry().attempts:
            self._most.release()

    def wait_for_more(self) -> None:
        assert self._most.acquire(timeout=LONG_S)


class RestartedGateway:
    """A gateway process that can be killed and started again. Clients find it at one address, which
    stays taken while no gateway listens there: connections are refused then."""

    def __init__(self, directory: Path, fakes: FakeStages, tries: FailedTries) -> None:
        self.fakes = fakes
        self._failed_tries = tries
        self._config, self._key = directory / "deployment.yaml", directory / "resume-key"
        self._key.write_text("0123456789abcdef" * 4)
        self._taken = socket.socket()
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            self._taken.setsockopt(socket.SOL_SOCKET, option, 1)
        self._taken.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._taken.getsockname()[1]}"
        self._life = AsyncExitStack()

    async def start(self) -> None:
        """Return when it is ready."""
        deployment = deployment_of(
            self.fakes, grpc_listen=self.address, resume_key_file=str(self._key)
        )
        self._config.write_bytes(dump_deployment(deployment))
        self._process, announced = await self._life.enter_async_context(
            gateway_process(self._config)
        )
        for event in ("listening", "ready"):
            assert json.loads(await announced.readline())["event"] == event

    async def kill(self) -> None:
        """Send SIGKILL; returns when the process is gone."""
        self._process.kill()
        await self._process.wait()

    async def restart(self) -> None:
        """Start again, when a call has failed more often than an attempt count would allow."""
        await asyncio.to_thread(self._failed_tries.wait_for_more)
        await self.start()

    async def close(self) -> None:
        await self._life.aclose()
        self._taken.close()


@pytest.fixture
def tries(caplog: pytest.LogCaptureFixture) -> Iterator[FailedTries]:
    log = logging.getLogger("antiphon.client")
    caplog.set_level(logging.DEBUG, logger=log.name)
    counting = FailedTries()
    log.addHandler(counting)
    yield counting
    log.removeHandler(counting)


@asynccontextmanager
async def restarted_gateway(directory: Path, tries: FailedTries) -> AsyncIterator[RestartedGateway]:
    async with asyncio.timeout(LONG_S), FakeStages() as fakes:
        gateway = RestartedGateway(directory, fakes, tries)
        try:
            await gateway.start()
            yield gateway
        finally:
            await gateway.close()


async def test_an_answer_under_way_goes_on_when_its_gateway_is_back(
    tmp_path: Path, tries: FailedTries
) -> None:
    text, samples = "", b""
    async with (
        restarted_gateway(tmp_path, tries) as gateway,
        antiphon.AsyncClient(gateway.address) as client,
    ):
        gateway.fakes[CODE2WAV].script = first_piece_alone
        async for event in client.generate("Hi", include_ids=True):
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, AudioDelta):
                samples += event.float32
                if len(samples) == len(event.float32):
                    gateway.fakes[CODE2WAV].script = make_waves
                    await gateway.kill()
                    restarting = asyncio.create_task(gateway.restart())
        await restarting
    assert text == TEXT
    assert np.frombuffer(samples, "<f4").tolist() == SAMPLES.tolist()


async def test_a_blocking_answer_goes_on_when_its_gateway_is_back(
    tmp_path: Path, tries: FailedTries
) -> None:
    begun, killed = threading.Event(), threading.Event()

    def listen(address: str) -> bytes:
        samples = b""
        with antiphon.Client(address) as client:
            for event in client.generate("Hi", include_ids=True):
                if isinstance(event, AudioDelta):
                    samples += event.float32
                    begun.set()
                    assert killed.wait(LONG_S)
        return samples

    async with restarted_gateway(tmp_path, tries) as gateway:
        gateway.fakes[CODE2WAV].script = first_piece_alone
        listening = asyncio.create_task(asyncio.to_thread(listen, gateway.address))
        assert await asyncio.to_thread(begun.wait, LONG_S)
        gateway.fakes[CODE2WAV].script = make_waves
        await gateway.kill()
        killed.set()
        await gateway.restart()
        assert np.frombuffer(await listening, "<f4").tolist() == SAMPLES.tolist()


async def test_a_conversation_goes_on_when_its_gateway_is_back(
    tmp_path: Path, tries: FailedTries
) -> None:
    async with (
        restarted_gateway(tmp_path, tries) as gateway,
        antiphon.AsyncClient(gateway.address) as client,
        client.converse(spoken=False, instructions="Be brief.") as call,
    ):
        await said(call, "Hello")
        await call.respond()
        assert (await until(call, antiphon.ResponseDone)).response.status == "completed"
        await gateway.kill()
        restarting = asyncio.create_task(gateway.restart())
        # To a gateway that is gone.
        await call.add("And now?")
        await call.respond()
        assert (await until(call, antiphon.ConversationOpened)).settings.instructions == "Be brief."
        response = (await until(call, antiphon.ResponseDone)).response
        assert response.status == "completed", response.error
        await restarting


@pytest.mark.parametrize("calls", ["asyncio", "blocking"])
async def test_calls_that_begin_while_the_gateway_is_away_are_answered(
    tmp_path: Path, tries: FailedTries, calls: str
) -> None:
    async with (
        restarted_gateway(tmp_path, tries) as gateway,
        antiphon.AsyncClient(gateway.address) as aio,
    ):
        blocking = antiphon.Client(gateway.address)
        # A gateway that has never answered a client is not waited for as long.
        await aio.server_info()
        await asyncio.to_thread(blocking.server_info)
        await gateway.kill()
        asked: list[asyncio.Future[antiphon.Reply] | asyncio.Future[antiphon.ServerInfo]]
        if calls == "asyncio":
            asked = [
                asyncio.ensure_future(aio.generate("Hi").collect()),
                asyncio.ensure_future(aio.server_info(timeout_s=LONG_S)),
            ]
        else:
            ask: Callable[[], antiphon.Reply] = lambda: blocking.generate("Hi").collect()  # noqa: E731
            asked = [
                asyncio.ensure_future(asyncio.to_thread(ask)),
                asyncio.ensure_future(asyncio.to_thread(blocking.server_info, timeout_s=LONG_S)),
            ]
        await gateway.restart()
        reply, info = await asyncio.gather(*asked)
        assert isinstance(reply, antiphon.Reply)
        assert isinstance(info, antiphon.ServerInfo)
        assert reply.text == TEXT
        blocking.close()
