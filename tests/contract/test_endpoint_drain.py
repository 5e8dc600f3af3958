"""A gateway that is told to stop: what it refuses, what it finishes, what it ends."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import antiphon
from antiphon.deployment.schema import dump_deployment
from antiphon.errors import Unavailable
from antiphon_gateway.server import Gateway
from tests.contract.fake_stages import CODE2WAV, TALKER, THINKER, FakeStages, stall
from tests.contract.gateway_process import gateway_process
from tests.contract.paused_thinker import Pause
from tests.contract.served_gateway import MESSAGES, MODEL, SPOKEN, deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

BODY: dict[str, Any] = {"model": MODEL, "messages": MESSAGES}
LONG_S = 240.0


@dataclass
class Running:
    """A gateway process with a paused thinker, and a client."""

    process: asyncio.subprocess.Process
    fakes: FakeStages
    pause: Pause
    http: httpx.AsyncClient
    grpc_address: str

    async def tell_to_stop(self) -> None:
        """Send SIGTERM; returns when the gateway has it."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        while b"shutting down: waiting" not in (line := await self.process.stderr.readline()):
            assert line, "the gateway ended"


@asynccontextmanager
async def paused_gateway(directory: Path, drain_s: float) -> AsyncIterator[Running]:
    async with FakeStages() as fakes:
        pause = Pause()
        fakes[THINKER].script = pause
        config = directory / "deployment.yaml"
        config.write_bytes(dump_deployment(deployment_of(fakes, drain_s=drain_s)))
        async with gateway_process(config) as (process, announced):
            endpoints = json.loads(await announced.readline())
            assert json.loads(await announced.readline())["event"] == "ready"
            url = f"http://{endpoints['http']}"
            async with httpx.AsyncClient(base_url=url, timeout=LONG_S) as http:
                yield Running(process, fakes, pause, http, endpoints["grpc"])


def last_event(text: str) -> Any:
    return json.loads(text.rstrip().split("\n\n")[-1].removeprefix("data: "))


@pytest.mark.parametrize("stream", [True, False])
async def test_running_answers_are_finished_and_new_ones_refused_when_told_to_stop(
    tmp_path: Path, stream: bool
) -> None:
    async with paused_gateway(tmp_path, LONG_S) as running:
        http, path = running.http, "/v1/chat/completions"
        asking = asyncio.create_task(http.post(path, json={**BODY, "stream": stream}))
        await running.pause.begun.wait()
        await running.tell_to_stop()
        health = await http.get("/health")
        assert (health.status_code, health.json()["ready"]) == (503, False)
        assert "shutting down" in health.json()["reason"]
        refused = await http.post(path, json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert (refused.headers["x-should-retry"], refused.headers["retry-after"]) == ("true", "1")
        assert refused.headers["connection"] == "close"
        # No other gateway comes to this address.
        soon = antiphon.Retry(within_s=2.0)
        async with antiphon.AsyncClient(running.grpc_address, retry=soon) as client:
            with pytest.raises(Unavailable, match=r"shutting down \(attempts: \d+ in"):
                await client.generate("Hi").collect()
        running.pause.go_on.set()
        answer = await asking
        if stream:
            assert answer.text.endswith("data: [DONE]\n\n")
        else:
            assert answer.json()["choices"][0]["message"]["content"] == "Hello"
        assert await running.process.wait() == 0


async def test_an_answer_ends_with_an_error_when_it_outlasts_the_drain(tmp_path: Path) -> None:
    async with paused_gateway(tmp_path, 0.2) as running:
        body = {**BODY, "stream": True}
        asking = asyncio.create_task(running.http.post("/v1/chat/completions", json=body))
        await running.pause.begun.wait()
        await running.tell_to_stop()
        error = last_event((await asking).text)["error"]
        assert (error["code"], error["message"]) == ("unavailable", "the gateway is shutting down")
        assert await running.process.wait() == 0


async def test_a_second_signal_ends_the_drain(tmp_path: Path) -> None:
    async with paused_gateway(tmp_path, 10 * LONG_S) as running:
        body = {**BODY, "stream": True}
        asking = asyncio.create_task(running.http.post("/v1/chat/completions", json=body))
        await running.pause.begun.wait()
        await running.tell_to_stop()
        running.process.send_signal(signal.SIGTERM)
        assert last_event((await asking).text)["error"]["code"] == "unavailable"
        assert await running.process.wait() == 0


@pytest.mark.parametrize("in_time", [True, False])
async def test_grpc_answers_are_finished_or_end_with_an_error_when_told_to_stop(
    in_time: bool,
) -> None:
    async with FakeStages() as fakes:
        pause = Pause()
        fakes[THINKER].script = pause
        if not in_time:
            fakes[TALKER].script = fakes[CODE2WAV].script = stall
        drain_s = LONG_S if in_time else 0.1
        async with Gateway(deployment_of(fakes, drain_s=drain_s)) as gateway:
            await gateway.wait_ready()
            # No other gateway could go on with the answer.
            client = antiphon.AsyncClient(gateway.grpc_address, retry=antiphon.Retry(attempts=1))
            asking = asyncio.create_task(
                client.generate("Hi", voice=SPOKEN["audio"]["voice"]).collect()
            )
            await pause.begun.wait()
            gateway.calls.refuse()
            if in_time:
                pause.go_on.set()
        if in_time:
            assert (await asking).text == "Hello"
        else:
            with pytest.raises(Unavailable, match="shutting down"):
                await asking
        await client.close()
