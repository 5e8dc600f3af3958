"""Runs a stage in this process, with a real gRPC server on a free port, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.server.description import StageIdentity
from antiphon.runtime.server.engine_faults import EngineFaults, Told
from antiphon.runtime.server.link_port import LinkPort
from antiphon.runtime.server.servicer import StageServicer
from antiphon.runtime.server.stage import STEP_TIMEOUT_S, Record, Stage
from antiphon.runtime.session.plan import StageLimits, StagePlan
from antiphon.tracing.tracing import Tracing
from antiphon.transport.channel import CHANNEL_OPTIONS, SERVER_OPTIONS
from antiphon.transport.settings import LinkIdentity, LinkSettings
from antiphon.wire.frames import add_stage_service

LIMITS = StageLimits(slots=4, stall_timeout_s=30.0, hold_timeout_s=10.0, hold_bytes=1 << 20)
# If a link breaks, it is considered lost immediately.
LINKS = LinkSettings("auto", device="cpu", slab_bytes=1 << 20, resume_window_s=0.0)


@dataclass(frozen=True, slots=True)
class RunningStage:
    """A running stage, its address, and a channel to it."""

    stage: Stage
    address: str
    channel: grpc.aio.Channel


@asynccontextmanager
async def running_stage(
    loaded: LoadedStage,
    role: str,
    *,
    pipeline: Pipeline,
    limits: StageLimits = LIMITS,
    outbox_bytes: int = 1 << 20,
    links: LinkSettings = LINKS,
    step_timeout_s: float = STEP_TIMEOUT_S,
    told: Told = lambda fault, passes: None,
    failing_pause_s: float = 5.0,
    hung_timeout_s: float = 60.0,
    record: Record | None = None,
    tracing: Tracing | None = None,
) -> AsyncIterator[RunningStage]:
    """Serve `loaded` as `role` until the block ends."""
    pipeline = pipeline.with_options(role, loaded.facts.options)
    identity = StageIdentity(
        pipeline, role, loaded.facts, limits.slots, resume_window_s=links.resume_window_s
    )
    facts = loaded.facts
    plan = StagePlan.of(
        pipeline,
        role,
        facts.default_sampling,
        limits,
        sample_rate_hz=facts.sample_rate_hz,
        goes_on_from=facts.goes_on_from,
    )
    servicer = StageServicer(tracing)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_stage_service(servicer, server)
    # A gateway checks this. A stage is healthy until the block ends.
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    link_identity = LinkIdentity(identity.host_id, identity.boot_id, role, address)
    stage = Stage(
        loaded,
        plan,
        link_identity,
        links=links,
        outbox_bytes=outbox_bytes,
        step_timeout_s=step_timeout_s,
        faults=EngineFaults(told, pause_s=failing_pause_s, hung_s=hung_timeout_s),
        record=record,
    )
    await server.start()
    stage.start()
    servicer.serve(stage, identity, LinkPort(stage, link_identity, links))
    try:
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            yield RunningStage(stage, address, channel)
    finally:
        await stage.close()
        await server.stop(None)
