"""A thousand cancels at random moments of several conversations: nothing is left of them, and the
turn after them is that of a fresh conversation."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import grpc
import httpx
import msgspec
import numpy as np
import openai
import pytest
import pytest_asyncio
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.v1 import stage_pb2
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.gateway_settings import with_settings
from antiphon_testkit.local_deployment import local_deployment
from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

CANCELS = 1000
CONVERSATIONS = 8
# The checkpoint answers with more than a hundred tokens, and speaks about as many frames.
QUESTION = "day one"
MOST_TOKENS = 100
MOST_EVENTS = 40
"""Of one response that come before it is cancelled; some are over by then."""

HELD = "antiphon_gateway_memory_bytes{"
MOST_ROUNDED = 4
"""Steps of 16 bits that 1e-4 of audio are at most."""

Told = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """Services that draw nothing, so that an answer is always the same."""
    directory: Path = tmp_path_factory.mktemp("cancelled") / "tiny"
    build_tiny_checkpoint(directory)
    path = directory / "generation_config.json"
    settings = {"talker_do_sample": False, "talker_max_new_tokens": 60}
    path.write_bytes(msgspec.json.encode(json.loads(path.read_bytes()) | settings))
    stage = stage_config(slots=CONVERSATIONS, step_timeout_s=120.0, stall_timeout_s=120.0)
    deployment = local_deployment(directory, thinker=stage, talker=stage, code2wav=stage)
    gateway = with_settings(deployment.gateway, probe_timeout_s=60.0)
    async with WarmLauncher(msgspec.structs.replace(deployment, gateway=gateway)) as running:
        yield running


class Caller:
    """One conversation of one question, which is answered again and again."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self._connection = connection

    async def begin(self) -> None:
        audio = {"input": {"turn_detection": None}}
        session = {"type": "realtime", "max_output_tokens": MOST_TOKENS, "audio": audio}
        await self.send("session.update", session=session)
        part = {"type": "input_text", "text": QUESTION}
        item = {"type": "message", "role": "user", "content": [part]}
        await self.send("conversation.item.create", item=item)
        await self.until("conversation.item.done")

    async def send(self, kind: str, **fields: Any) -> None:
        await self._connection.send({"type": kind, **fields})  # type: ignore[arg-type]

    async def next(self) -> Told:
        event: Told = json.loads(await self._connection.recv_bytes())
        code = event["error"]["code"] if event["type"] == "error" else ""
        assert code in ("", "response_cancel_not_active"), event
        return event

    async def until(self, kind: str) -> Told:
        while (event := await self.next())["type"] != kind:
            pass
        return event

    async def cancel(self, random: Random) -> bool:
        """Have an answer begun and cancelled; whether it was in time."""
        await self.send("response.create")
        response: Told | None = None
        for _ in range(random.choice((0, 1, random.randrange(MOST_EVENTS)))):
            event = await self.next()
            if event["type"] == "response.done":
                response = event["response"]
                break
        await self.send("response.cancel")
        if response is None:
            response = (await self.until("response.done"))["response"]
        assert response["status"] in ("completed", "incomplete", "cancelled"), response
        await self._forget(response)
        return bool(response["status"] == "cancelled")

    async def answer(self) -> tuple[str, bytes]:
        """The transcript and the samples of a whole answer."""
        await self.send("response.create")
        audio: list[bytes] = []
        while (event := await self.next())["type"] != "response.done":
            if event["type"] == "response.output_audio.delta":
                audio.append(base64.b64decode(event["delta"]))
        (item,) = event["response"]["output"]
        await self._forget(event["response"])
        return item["content"][0]["transcript"], b"".join(audio)

    async def _forget(self, response: Told) -> None:
        """Take the answer out, so that the question is always the same."""
        for item in response["output"]:
            await self.send("conversation.item.delete", item_id=item["id"])
            await self.until("conversation.item.deleted")


async def described(running: Running, role: str) -> stage_pb2.DescribeResponse:
    address = running.processes[role].address
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        return await stage_stub(channel).Describe(stage_pb2.DescribeRequest())


async def gauges(running: Running) -> dict[str, float]:
    async with httpx.AsyncClient(base_url=running.http_url, timeout=240) as http:
        lines = (await http.get("/metrics")).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    names = ("in_flight", "conversations", "connections")
    found = {name: float(values[f"antiphon_gateway_{name}"]) for name in names}
    of_holders = [v for name, v in values.items() if name.startswith(HELD)]
    return {**found, "memory_bytes": sum(map(float, of_holders))}


@pytest.mark.timeout(0)
async def test_nothing_is_left_of_a_thousand_cancels(running: Running) -> None:
    url = f"{running.http_url}/v1"
    roles = [role for role in running.processes if role != "gateway"]
    outcomes: Counter[bool] = Counter()
    left = CANCELS

    async def keep_cancelling(caller: Caller, random: Random) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            in_time = await caller.cancel(random)
            outcomes[in_time] += 1
            left += not in_time

    async with openai.AsyncOpenAI(base_url=url, api_key="none", timeout=600) as api:

        async def call(stack: AsyncExitStack) -> Caller:
            model = (await api.models.list()).data[0].id
            connection = await stack.enter_async_context(api.realtime.connect(model=model))
            caller = Caller(connection)
            await caller.begin()
            return caller

        async with AsyncExitStack() as stack:
            fresh = await (await call(stack)).answer()
            callers = [await call(stack) for _ in range(CONVERSATIONS)]
            await asyncio.gather(
                *(keep_cancelling(each, Random(seed)) for seed, each in enumerate(callers))
            )
            assert outcomes[True] == CANCELS
            # Between turns the stages hold the sessions and nothing else.
            assert (await gauges(running))["in_flight"] == 0
            for role in roles:
                told = await described(running, role)
                assert (told.open_segments, told.held_segments) == (0, 0), role
                assert told.open_sessions <= CONVERSATIONS + 1, role
            # As many at once as there are slots: a lost one would be missed.
            answers = await asyncio.gather(*(each.answer() for each in callers))
            assert fresh[0]
            assert len(fresh[1])
            assert {text for text, _ in answers} == {fresh[0]}
            said = np.frombuffer(fresh[1], "<i2").astype(int)
            for _, audio in answers:
                # Frames that were decoded in other company.
                assert np.abs(np.frombuffer(audio, "<i2") - said).max() <= MOST_ROUNDED
            again = await (await call(stack)).answer()
            assert again[0] == fresh[0]
    for role in roles:
        for _ in range(1000):
            told = await described(running, role)
            if not told.open_sessions:
                break
            await asyncio.sleep(0.01)
        assert (told.open_sessions, told.open_segments) == (0, 0), role
    assert await gauges(running) == {
        "in_flight": 0, "conversations": 0, "memory_bytes": 0, "connections": 1,
    }  # fmt: skip
    print(f"{CANCELS} cancelled, {outcomes[False]} were over before")
