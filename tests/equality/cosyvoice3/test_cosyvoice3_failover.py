"""An answer of CosyVoice3 outlives a stage, and its samples are the same.

Whole: no stage goes on from what the client has: the talker's history holds silent codes that
never left. Another replica makes all of it again by the same draws, and what the client has is
dropped. Streamed: the other replica goes on in mid-sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import grpc
import httpx
import msgspec
import pytest
import pytest_asyncio
from cosy_asking import Recorded, check, options_of
from prometheus_client.parser import text_string_to_metric_families

import antiphon
from antiphon import ChunkPolicy, Delivery
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.cosyvoice3 import PIPELINE
from antiphon.testing.local_deployment import local_deployment
from antiphon.v1 import stage_pb2, stage_pb2_grpc
from tests.equality.cosyvoice3.cosy_cases import all_cases
from tests.equality.read_aloud import listen
from tools.launcher.launcher import Running
from tools.launcher.plan import replica_names
from tools.warm.launcher import WarmLauncher

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

REPLICAS = 2
AHEAD_S = 0.5
"""So little may be made ahead of the client that the answer cannot end before the client reads."""
CASE = {case.name: case for case in all_cases()}["zero-shot-long"]


@pytest_asyncio.fixture(loop_scope="session")
async def replicas(cosy_checkpoints: dict[str, Path]) -> AsyncIterator[Running]:
    """Two processes of each stage, new ones for each test: the answer needs the second one."""
    stages = dict.fromkeys(PIPELINE.roles, StageConfig(slots=2, replicas=REPLICAS))
    deployment = local_deployment(cosy_checkpoints["voices"], **stages)
    ahead = {"max_ahead_seconds": AHEAD_S, "max_stage_ahead_seconds": AHEAD_S}
    gateway = msgspec.structs.replace(deployment.gateway, **ahead)
    deployment = msgspec.structs.replace(deployment, gateway=gateway)
    async with WarmLauncher(deployment) as running:
        yield running


async def at_work(running: Running, name: str) -> str:
    """Wait until the process reports an open segment; return its name."""
    async with grpc.aio.insecure_channel(running.processes[name].address) as channel:
        loads = stage_pb2_grpc.StageServiceStub(channel).WatchLoad(stage_pb2.WatchLoadRequest())
        async for load in loads:
            if load.open_segments:
                return name
    raise AssertionError(f"{name} ended its stream of loads")


async def kill_used(running: Running, role: str) -> None:
    """Kill the replica of the stage that has a segment open, as soon as one has."""
    watches = [
        asyncio.create_task(at_work(running, each)) for each in replica_names(role, REPLICAS)
    ]
    done, others = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    running.processes[done.pop().result()].kill()


async def failovers(running: Running) -> float:
    async with httpx.AsyncClient(base_url=running.http_url, timeout=60) as http:
        text = (await http.get("/metrics")).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "antiphon_gateway_failovers_total"
    )


@pytest.mark.parametrize("delivery", [Delivery.WHOLE, Delivery.STREAM])
@pytest.mark.parametrize("role", PIPELINE.roles)
async def test_an_answer_goes_on_with_the_same_samples_when_a_stage_is_killed(
    role: str, delivery: Delivery, replicas: Running, recorded: Recorded
) -> None:
    policy = ChunkPolicy(first=1, ramp=(), steady=2) if delivery is Delivery.STREAM else None
    # The audio of a whole answer leaves in one chunk, when no stage works on it any longer.
    at_once = delivery is Delivery.WHOLE
    async with antiphon.AsyncClient(replicas.grpc_address) as client:
        generation = client.generate(
            CASE.text,
            modalities=("audio",),
            seed=recorded.seeds[CASE.name],
            options=options_of(CASE),
            delivery=delivery,
            chunk_policy=policy,
            include_ids=True,
            timeout_s=240,
        )
        if at_once:
            await kill_used(replicas, role)
        at_first = None if at_once else partial(kill_used, replicas, role)
        speech = await listen(generation, at_first=at_first)
    check(speech, CASE, recorded, delivery)
    # A loss before the gateway learns of the open segment is not counted as a failover.
    assert await failovers(replicas) == 1 or at_once
