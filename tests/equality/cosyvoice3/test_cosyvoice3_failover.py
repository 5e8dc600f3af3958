"""An answer of CosyVoice3 outlives a stage, and its samples are the same.

Whole: no stage goes on from what the client has: the talker's history holds silent codes that
never left. Another replica makes all of it again by the same draws, and what the client has is
dropped. Streamed: the other replica goes on in mid-sentence.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

import antiphon
from antiphon import ChunkPolicy, Delivery
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.cosyvoice3 import PIPELINE
from antiphon_testkit.gateway_settings import with_settings
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.equality.cosyvoice3.cosy_asking import Recorded, check, options_of
from tests.equality.cosyvoice3.cosy_cases import all_cases
from tests.equality.lost_replicas import failovers, kill_used
from tests.equality.read_aloud import listen

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
    gateway = with_settings(deployment.gateway, **ahead)
    deployment = msgspec.structs.replace(deployment, gateway=gateway)
    async with WarmLauncher(deployment) as running:
        yield running


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
            await kill_used(replicas, role, REPLICAS)
        at_first = None if at_once else partial(kill_used, replicas, role, REPLICAS)
        speech = await listen(generation, at_first=at_first)
    check(speech, CASE, recorded, delivery)
    # A loss before the gateway learns of the open segment is not counted as a failover.
    assert await failovers(replicas) == 1 or at_once
