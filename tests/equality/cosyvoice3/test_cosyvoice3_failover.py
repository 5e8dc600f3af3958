"""An answer of CosyVoice3 outlives a stage in mid-sentence, and its samples are the same.

No stage goes on from what the client has: the talker's history holds silent codes that never left.
Another replica makes all of it again by the same draws, and what the client has is dropped.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from cosy_asking import SLOTS, Recorded, check, listen, options_of
from prometheus_client.parser import text_string_to_metric_families

import antiphon
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.cosyvoice3 import PIPELINE
from antiphon.testing.local_deployment import local_deployment
from tests.equality.cosyvoice3.cosy_cases import all_cases
from tools.launcher.launcher import Launcher, Running

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

CASE = {case.name: case for case in all_cases()}["zero-shot-long"]
REPLICAS = 2
MOST_KILLS = 4
"""Of a stage that may have made all of its part before it is killed."""


@pytest_asyncio.fixture(loop_scope="session")
async def fleet(cosy_checkpoints: dict[str, Path]) -> AsyncIterator[Running]:
    stages = dict.fromkeys(PIPELINE.roles, StageConfig(slots=SLOTS, replicas=REPLICAS))
    deployment = local_deployment(cosy_checkpoints["voices"], **stages)
    async with Launcher(deployment, on_exit="restart") as running:
        yield running


async def failovers(running: Running) -> float:
    async with httpx.AsyncClient(base_url=running.http_url, timeout=60) as http:
        text = (await http.get("/metrics")).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "antiphon_gateway_failovers_total"
    )


@pytest.mark.parametrize("role", PIPELINE.roles)
async def test_answer_goes_on_with_the_same_samples_when_a_stage_is_killed(
    role: str, fleet: Running, recorded: Recorded
) -> None:
    """Sessions spread over the replicas, so that one of two has the stage that is killed."""
    async with antiphon.AsyncClient(fleet.grpc_address) as client:
        for _ in range(MOST_KILLS):
            answers = [
                client.generate(
                    CASE.text,
                    modalities=("audio",),
                    seed=recorded.seeds[CASE.name],
                    options=options_of(CASE),
                    include_ids=True,
                    timeout_s=240,
                )
                for _ in range(REPLICAS)
            ]
            begun = asyncio.Event()
            reading = [asyncio.create_task(listen(each, begun=begun)) for each in answers]
            await begun.wait()
            os.kill(fleet.processes[role].pid, signal.SIGKILL)
            for speech in await asyncio.gather(*reading):
                check(speech, CASE, recorded)
            if await failovers(fleet):
                return
    raise AssertionError(f"the {role} was killed {MOST_KILLS} times, and no answer was at work")
