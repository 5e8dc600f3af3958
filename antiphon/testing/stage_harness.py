"""Runs a stage in this process on a real gRPC server at a free port: for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from antiphon.pipelines.graph import Pipeline
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.description import StageIdentity
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.plan import StageLimits, StagePlan
from antiphon.runtime.servicer import StageServicer
from antiphon.runtime.stage import Stage
from antiphon.transport.channel import CHANNEL_OPTIONS, SERVER_OPTIONS
from antiphon.transport.link import LinkIdentity
from antiphon.v1 import stage_pb2_grpc

LIMITS = StageLimits(slots=4, stall_timeout_s=30.0, hold_timeout_s=10.0, hold_bytes=1 << 20)


@dataclass(frozen=True, slots=True)
class RunningStage:
    """A served stage, its address, and a channel to it."""

    stage: Stage
    address: str
    channel: grpc.aio.Channel


@asynccontextmanager
async def running_stage(
    loaded: LoadedStage,
    role: str,
    *,
    pipeline: Pipeline = PIPELINE,
    limits: StageLimits = LIMITS,
    outbox_bytes: int = 1 << 20,
) -> AsyncIterator[RunningStage]:
    """Serve `loaded` as `role` until the block ends."""
    identity = StageIdentity(pipeline, role, loaded.facts, limits.slots)
    plan = StagePlan.of(pipeline, role, loaded.facts.default_sampling, limits)
    link_identity = LinkIdentity(identity.host_id, identity.boot_id, role)
    stage = Stage(loaded, plan, link_identity, outbox_bytes=outbox_bytes)
    servicer = StageServicer()
    server = grpc.aio.server(options=SERVER_OPTIONS)
    stage_pb2_grpc.add_StageServiceServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    stage.start()
    servicer.serve(stage, identity)
    try:
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            yield RunningStage(stage, address, channel)
    finally:
        await stage.close()
        await server.stop(None)
