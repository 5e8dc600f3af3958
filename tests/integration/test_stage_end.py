"""The end of a stage process: it drains when told to, and exits when its engine can't continue."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon.deployment.schema import Deployment, StageConfig, dump_deployment
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.v1 import session_pb2
from antiphon.wire.chunks import chunk_to_proto
from antiphon_testkit.qwen3_omni.fake_engine import EXPLOSION
from antiphon_tools.launcher.plan import application_root
from antiphon_tools.launcher.process import ServiceProcess
from tests.integration.stage_session import Request, Session, codes_chunk, opening

pytestmark = [pytest.mark.processes, pytest.mark.asyncio]

UNAVAILABLE = session_pb2.ErrorCode.ERROR_CODE_UNAVAILABLE
Status = health_pb2.HealthCheckResponse
GENEROUS_S = 120.0
NEVER_S = 10_000.0


@dataclass(frozen=True)
class Served:
    """A stage process, and a channel to it as `Session` takes it."""

    process: ServiceProcess
    channel: grpc.aio.Channel
    probes: health_pb2_grpc.HealthStub

    async def says(self, name: str) -> bool:
        """What its health port answers to a probe."""
        request = health_pb2.HealthCheckRequest(service=name)
        return (await self.probes.Check(request)).status == Status.SERVING

    async def stop(self) -> None:
        """Tell it to stop, and wait until it says that it serves no more."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        watching = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watching.read()).status == Status.SERVING
        os.kill(self.process.pid, signal.SIGTERM)
        assert (await watching.read()).status == Status.NOT_SERVING
        watching.cancel()

    async def begin(self, name: str) -> Session:
        """A session that is under way."""
        session = Session(self, name)  # type: ignore[arg-type]
        await session.send(*opening(name))
        await session.opened()
        await session.send(Request(chunk=chunk_to_proto(codes_chunk(name, 0, [5]))))
        await session.audio()
        return session


@asynccontextmanager
async def served(directory: Path, *, drain_s: float = NEVER_S) -> AsyncIterator[Served]:
    config = directory / "stage.yaml"
    stages = {"code2wav": StageConfig(drain_s=drain_s, health_listen="127.0.0.1:0")}
    deployment = Deployment(model=str(directory), pipeline=PIPELINE.name, stages=stages)
    config.write_bytes(dump_deployment(deployment))
    argv = ("tests.integration.fake_stage", "code2wav", "--config", str(config))
    process = await ServiceProcess.start(
        "code2wav", argv, root=application_root(), report=lambda _: None
    )
    try:
        async with asyncio.timeout(GENEROUS_S):
            await process.wait_ready()
            health = process.health_address
            async with (
                grpc.aio.insecure_channel(process.address, CHANNEL_OPTIONS) as channel,
                grpc.aio.insecure_channel(health) as probes,
            ):
                yield Served(process, channel, health_pb2_grpc.HealthStub(probes))
    finally:
        process.kill()
        await process.report_exit()


async def test_a_stage_told_to_stop_refuses_the_new_and_finishes_what_runs(tmp_path: Path) -> None:
    async with served(tmp_path) as stage:
        assert (await stage.says("ready"), await stage.says("alive")) == (True, True)
        session = await stage.begin("running")
        await stage.stop()
        assert (await stage.says("ready"), await stage.says("alive")) == (False, True)
        late = Session(stage, "late")  # type: ignore[arg-type]
        await late.send(*opening("late")[:1])
        refused = await late.error()
        assert refused.code == UNAVAILABLE
        assert refused.retry_after_s
        await session.send(Request(chunk=chunk_to_proto(codes_chunk("running", 1, [6], end=True))))
        assert (await session.audio()).segment_finished
        await session.read("report")
        await session.call.done_writing()
        assert await session.call.read() is grpc.aio.EOF
        assert await stage.process.wait() == 0


async def test_what_is_left_when_the_drain_is_over_ends_with_a_typed_error(tmp_path: Path) -> None:
    async with served(tmp_path, drain_s=0.1) as stage:
        session = await stage.begin("running")
        os.kill(stage.process.pid, signal.SIGTERM)
        error = await session.error()
        assert (error.code, error.stage) == (UNAVAILABLE, "code2wav")
        assert "shut down before the session had finished" in error.message
        assert await stage.process.wait() == 0


async def test_a_second_signal_ends_the_drain_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as stage:
        session = await stage.begin("running")
        await stage.stop()
        os.kill(stage.process.pid, signal.SIGTERM)
        assert (await session.error()).code == UNAVAILABLE
        assert await stage.process.wait() == 0


async def test_a_stage_whose_engine_is_at_its_end_tells_every_session_and_exits(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as stage:
        other = await stage.begin("other")
        bad = await stage.begin("bad")
        await bad.send(Request(chunk=chunk_to_proto(codes_chunk("bad", 1, [EXPLOSION]))))
        for session in (bad, other):
            error = await session.error()
            assert error.code == UNAVAILABLE
            assert "can't continue" in error.message
        assert await stage.process.wait() == 1
