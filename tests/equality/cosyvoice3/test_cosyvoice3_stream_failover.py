"""A stream whose stage dies in mid-sentence goes on elsewhere, with the very samples."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import pytest_asyncio
from cosy_asking import Recorded, Speech, check, options_of

import antiphon
from antiphon import ChunkPolicy
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.cosyvoice3 import CODE2WAV, PIPELINE, TALKER
from antiphon.testing.local_deployment import local_deployment
from tests.equality.cosyvoice3.cosy_cases import all_cases
from tools.launcher.launcher import Launcher, Running
from tools.launcher.plan import replica_names

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
    async with Launcher(deployment) as running:
        yield running


async def kill_used(running: Running, role: str) -> None:
    """Kill the process of the stage that has a session open."""
    for name in replica_names(role, REPLICAS):
        process = running.processes[name]
        async with antiphon.AsyncStageClient(process.address) as stage:
            if (await stage.describe()).open_sessions:
                process.kill()
                return
    raise AssertionError(f"no {role} has a session")


@pytest.mark.parametrize("role", [CODE2WAV, TALKER])
async def test_a_stream_goes_on_in_mid_sentence(
    role: str, replicas: Running, recorded: Recorded
) -> None:
    codes, samples, finished = b"", b"", None
    async with antiphon.AsyncClient(replicas.grpc_address) as client:
        generation = client.generate(
            CASE.text,
            modalities=("audio",),
            seed=recorded.seeds[CASE.name],
            options=options_of(CASE),
            chunk_policy=ChunkPolicy(first=1, ramp=(), steady=2),
            include_ids=True,
            timeout_s=240,
        )
        async for event in generation:
            match event:
                case antiphon.AudioDelta():
                    if not samples:
                        await kill_used(replicas, role)
                    assert event.first_sample == len(samples) // 4
                    codes += event.codes
                    samples += event.float32
                case antiphon.Finished():
                    finished = event
    assert finished is not None
    speech = Speech(np.frombuffer(codes, "<u2"), np.frombuffer(samples, "<f4"), finished)
    check(speech, CASE, recorded)
