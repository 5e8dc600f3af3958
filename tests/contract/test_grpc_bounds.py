"""What a client may do to the gRPC door without a call."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest
from gateway_door import Door, open_door
from raw_http2 import PREFACE, SETTINGS, frame

from antiphon.deployment.schema import GatewayConfig
from antiphon.v1 import speech_pb2, speech_pb2_grpc
from gateway.descriptors import descriptors_needed, raise_limit

pytestmark = pytest.mark.asyncio(loop_scope="session")

PING, GOAWAY, WINDOW_UPDATE = 6, 7, 8
ENHANCE_YOUR_CALM = 11


@asynccontextmanager
async def connection(
    door: Door, first: bytes = b""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that sends something at first."""
    host, _, port = door.gateway.grpc_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(first)
        yield reader, writer
    finally:
        writer.close()


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    """Kind and payload of each frame until the connection ends."""
    try:
        while True:
            head = await reader.readexactly(9)
            yield head[3], await reader.readexactly(int.from_bytes(head[:3]))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return


async def ask(door: Door) -> None:
    async with grpc.aio.insecure_channel(door.gateway.grpc_address) as channel:
        message = speech_pb2.Message(role="user", parts=[speech_pb2.Part(text="Hi")])
        request = speech_pb2.GenerateRequest(messages=[message])
        async for _ in speech_pb2_grpc.SpeechServiceStub(channel).Generate(
            request, wait_for_ready=True
        ):
            pass


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with open_door(head_timeout_s=0.2) as door, connection(door) as (reader, _):
        # Closed after the settings that a server sends by itself.
        kinds = [kind async for kind, _ in frames(reader)]
        assert set(kinds) <= {SETTINGS, GOAWAY, WINDOW_UPDATE}
        await ask(door)


async def test_connections_beyond_the_bound_are_closed_and_the_others_are_served() -> None:
    hello = PREFACE + frame(SETTINGS, 0, 0, b"")
    async with open_door(max_grpc_connections=3) as door:
        async with AsyncExitStack() as stack:
            for _ in range(3):
                reader, _ = await stack.enter_async_context(connection(door, hello))
                assert (await anext(frames(reader)))[0] == SETTINGS
            async with connection(door, hello) as (fourth, _):
                assert await fourth.read() == b""
        await ask(door)


async def test_pings_without_end_end_the_connection() -> None:
    hello = PREFACE + frame(SETTINGS, 0, 0, b"")
    ping = frame(PING, 0, 0, bytes(8))
    async with open_door() as door, connection(door, hello + ping * 1_000) as (reader, _):
        told = [payload async for kind, payload in frames(reader) if kind == GOAWAY]
        assert int.from_bytes(told[-1][4:8]) == ENHANCE_YOUR_CALM
        await ask(door)


async def test_the_limit_of_open_files_is_raised_and_what_is_too_little_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    config = GatewayConfig(max_connections=100, max_grpc_connections=50)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
        raise_limit(config)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
        assert not caplog.records
        much = GatewayConfig(max_connections=before[1])
        assert descriptors_needed(much) > before[1]
        raise_limit(much)
        assert "gateway.max_grpc_connections" in caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
