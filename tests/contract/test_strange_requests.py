"""Requests that no gRPC library sends: the endpoints for gRPC stay open."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon.runtime.engine import LoadedStage
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from tests.contract.raw_http2 import sent
from tests.contract.served_gateway import serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

STRANGE: tuple[Mapping[bytes, bytes], ...] = (
    {b":path": b"/antiphon.v1.Speech\xb5ervice/Generate"},
    {b":path": b"\xff"},
    {b":path": b""},
    {b":path": b"/antiphon.v1.SpeechService/Generate\0"},
    {b":authority": b"\xff\xfe"},
    {b"x-\xff": b"a"},
    {b"x-name": b"\xff\xfe\0"},
    {b"x-bytes-bin": b"\xff"},
    {b"grpc-timeout": b"\xff"},
    {b"grpc-encoding": b"\xb5"},
    {b"content-type": b"text/html"},
    {b":method": b"\xb5"},
    {b"authorization": b"Bearer \xff"},
    {b"grpc-trace-bin": b"AAAA"},
    {b"traceparent": b"\xff"},
)
GENEROUS_S = 120.0
# Nothing, a length without an end, what claims to be compressed, and what is no message.
BODIES = (bytes(5), b"\0\xff\xff\xff\xff", b"\1\0\0\0\1\xff", b"\0\0\0\0\3\xff\xff\xff")
OF_THE_GATEWAY = (b"/antiphon.v1.SpeechService/Generate", b"/antiphon.v1.SpeechService/Converse")
OF_STAGES = (
    b"/antiphon.v1.StageService/RunSession",
    b"/antiphon.v1.StageService/Link",
    b"/antiphon.v1.StageService/WatchLoad",
    b"/antiphon.v1.StageService/Describe",
)


async def check_stays_open(address: str, paths: tuple[bytes, ...]) -> None:
    """Whatever comes, the next one is served."""
    for headers in STRANGE:
        for path in (b"/antiphon.v1.Nobody/Asks", *paths):
            await sent(address, {b":path": path, **headers})
            await check_serves(address, f"{path!r}, {headers}")
    for body in BODIES:
        for path in paths:
            await sent(address, {b":path": path}, body)
            await check_serves(address, f"{path!r}: {body!r}")


async def check_serves(address: str, after: str) -> None:
    """On a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options) as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        except grpc.aio.AioRpcError as error:
            pytest.fail(f"closed after {after}: {error.details()}")


async def test_the_gateway_stays_open_whatever_comes() -> None:
    async with asyncio.timeout(GENEROUS_S), serve_gateway() as served:
        await check_stays_open(served.gateway.grpc_address, OF_THE_GATEWAY)


async def test_a_stage_stays_open_whatever_comes() -> None:
    async with (
        asyncio.timeout(GENEROUS_S),
        running_stage(LoadedStage(FakeEngine(), FACTS), "code2wav") as running,
    ):
        await check_stays_open(running.address, OF_STAGES)


async def test_a_gateway_whose_grpc_endpoint_has_closed_by_itself_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, servers = grpc.aio.server, list[grpc.aio.Server]()

    def noted(*given: Any, **how: Any) -> grpc.aio.Server:
        servers.append(make(*given, **how))
        return servers[-1]

    monkeypatch.setattr(grpc.aio, "server", noted)
    # Those of the stages have been made before.
    async with (
        asyncio.timeout(GENEROUS_S),
        serve_gateway(lambda _: servers.clear()) as served,
    ):
        closed = asyncio.create_task(served.gateway.wait_closed())
        (server,) = servers
        assert not closed.done()
        await server.stop(0)
        await closed
