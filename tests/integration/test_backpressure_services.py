"""A paused client stops talker and code2wav of the real services, through both endpoints."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio

import antiphon
from antiphon import SamplingRequest
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.v1 import speech_pb2, speech_pb2_grpc, stage_pb2
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.gateway_settings import with_settings
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

Samples = npt.NDArray[np.float32]

FRAMES = 400
TALKER = {"temperature": 0.0, "max_tokens": FRAMES + 1}
OTHERS = {"talker": SamplingRequest(temperature=0.0, max_tokens=21)}
QUESTION = "day one"
# Longer than a busy machine keeps a stage from its next frames, and shorter than the pauses here.
STALL_S = 6.0
# 7 frames of audio and 7 of codes may be on their way, code2wav may add a step of what
# lies in front of it, and the talker completes a chunk of at most 12: 7 + 2 * (7 + 12).
AHEAD_S = 0.5
BOUND = 45
# What the sockets between gateway and client hold besides: about 250 KB, where a second
# of audio takes 64 KB or more.
IN_SOCKETS = 50
# A client that reads nothing also takes nothing in.
NARROW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 64 << 10))


@asynccontextmanager
async def launched(checkpoint: Path, ahead_s: float) -> AsyncIterator[Running]:
    stage = stage_config(stall_timeout_s=STALL_S)
    deployment = local_deployment(checkpoint, thinker=stage, talker=stage, code2wav=stage)
    gateway = with_settings(
        deployment.gateway, max_ahead_seconds=ahead_s, max_stage_ahead_seconds=ahead_s
    )
    async with WarmLauncher(msgspec.structs.replace(deployment, gateway=gateway)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(talkative: Path) -> AsyncIterator[Running]:
    async with launched(talkative, AHEAD_S) as running:
        yield running


async def describe(running: Running, role: str) -> stage_pb2.DescribeResponse:
    address = running.processes[role].address
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        return await stage_stub(channel).Describe(stage_pb2.DescribeRequest())


async def frames_made(running: Running) -> int:
    return (await describe(running, "talker")).output_positions["codes"]


@dataclass
class Endpoint:
    """A client that reads when it is told to: the samples of what it has read."""

    messages: AsyncIterator[Samples]

    async def first(self) -> Samples:
        while not len(samples := await anext(self.messages)):
            pass
        return samples

    async def rest(self) -> Samples:
        return np.concatenate([samples async for samples in self.messages])


@asynccontextmanager
async def grpc_endpoint(running: Running) -> AsyncIterator[Endpoint]:
    request = speech_pb2.GenerateRequest(include_ids=True)
    request.messages.add(role="user").parts.add(text=QUESTION)
    request.sampling["thinker"].max_tokens = 20
    request.sampling["talker"].temperature = TALKER["temperature"]
    request.sampling["talker"].max_tokens = FRAMES + 1

    async def audio() -> AsyncIterator[Samples]:
        async for message in call:
            assert not message.HasField("error"), message.error
            yield np.frombuffer(message.audio.float32, "<f4")

    async with grpc.aio.insecure_channel(running.grpc_address, options=NARROW) as channel:
        call = speech_pb2_grpc.SpeechServiceStub(channel).Generate(request)
        yield Endpoint(audio())
        call.cancel()


@asynccontextmanager
async def http_endpoint(running: Running) -> AsyncIterator[Endpoint]:
    body = {
        "model": (await describe(running, "thinker")).model,
        "messages": [{"role": "user", "content": QUESTION}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "ethan", "format": "pcm16"},
        "max_tokens": 20,
        "talker": TALKER,
        "stream": True,
    }

    async def audio() -> AsyncIterator[Samples]:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: "))["choices"]
                delta = choices[0]["delta"] if choices else {}
                pcm16 = base64.b64decode((delta.get("audio") or {}).get("data") or "")
                yield np.frombuffer(pcm16, "<i2") / np.float32(32767)

    async with (
        httpx.AsyncClient(base_url=running.http_url, timeout=240) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        yield Endpoint(audio())


ServeGateway = Callable[[Running], AbstractAsyncContextManager[Endpoint]]
ENDPOINTS = pytest.mark.parametrize("endpoint", [grpc_endpoint, http_endpoint])


@ENDPOINTS
async def test_paused_client_stops_the_stages_for_as_long_as_it_likes(
    running: Running, endpoint: ServeGateway
) -> None:
    """Longer than the stall timeout: others are served meanwhile, and nothing is lost."""
    async with endpoint(running) as unpaused:
        expected = await unpaused.rest()
    before, others = await frames_made(running), 0
    async with (
        endpoint(running) as slow,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        heard = await slow.first()
        loop, made = asyncio.get_running_loop(), [0]
        resume_at = loop.time() + 1.5 * STALL_S
        while loop.time() < resume_at:
            reply = await client.generate("Hello", max_tokens=20, sampling=OTHERS).collect()
            others += reply.usage.completion_audio_frames
            made.append(await frames_made(running) - before - others)
        assert 0 < made[-1] <= BOUND + IN_SOCKETS < FRAMES
        assert made[-1] == made[-2], "the paused session costs frames"
        for role in ("talker", "code2wav"):
            assert (await describe(running, role)).held_segments == 1
        heard = np.concatenate([heard, await slow.rest()])
    # Who shares a batch and a step may change the last bits of a sample; one that is
    # lost, repeated or of another frame is far from this.
    np.testing.assert_allclose(heard, expected, rtol=0, atol=1e-4)
    assert await frames_made(running) == before + others + FRAMES


@ENDPOINTS
async def test_client_that_leaves_while_it_holds_the_stages_frees_them(
    running: Running, endpoint: ServeGateway
) -> None:
    async with endpoint(running) as slow:
        await slow.first()
        while not (await describe(running, "code2wav")).held_segments:
            pass
    for role in ("thinker", "talker", "code2wav"):
        while (await describe(running, role)).open_sessions:
            pass
        told = await describe(running, role)
        assert (told.open_segments, told.held_segments) == (0, 0)


async def test_without_a_near_bound_the_stages_finish_for_a_paused_client(talkative: Path) -> None:
    """What the tests above would see without credit."""
    async with launched(talkative, 3600.0) as running, grpc_endpoint(running) as slow:
        await slow.first()
        while (await describe(running, "talker")).open_segments:
            pass
        assert await frames_made(running) == FRAMES > BOUND + IN_SOCKETS
