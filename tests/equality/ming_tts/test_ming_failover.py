"""An answer of Ming TTS outlives a stage in mid-sentence, and its latents and samples are the same.

Another talker goes on from the latents that the client has; another code2wav decodes all of them
again, and what the client has is dropped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

import antiphon
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.ming_tts import FRAME_WIDTH, PIPELINE
from antiphon_testkit.gateway_settings import with_settings
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.equality.lost_replicas import failovers, kill_used
from tests.equality.ming_tts.ming_asking import Recorded, check, options_of
from tests.equality.ming_tts.ming_cases import all_cases
from tests.equality.read_aloud import listen

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

REPLICAS = 2
AHEAD_S = 0.5
"""So little may be made ahead of the client that the answer cannot end before the client reads."""
CASES = {case.name: case for case in all_cases()}


@pytest_asyncio.fixture(loop_scope="session")
async def replicas(ming_checkpoint: Path) -> AsyncIterator[Running]:
    """Two processes of each stage, new ones for each test: the answer needs the second one."""
    stages = dict.fromkeys(PIPELINE.roles, StageConfig(slots=2, replicas=REPLICAS))
    deployment = local_deployment(ming_checkpoint, **stages)
    ahead = {"max_ahead_seconds": AHEAD_S, "max_stage_ahead_seconds": AHEAD_S}
    gateway = with_settings(deployment.gateway, **ahead)
    deployment = msgspec.structs.replace(deployment, gateway=gateway)
    async with WarmLauncher(deployment) as running:
        yield running


@pytest.mark.parametrize("name", ["plain-long", "warm-clip"])
@pytest.mark.parametrize("role", PIPELINE.roles)
async def test_an_answer_goes_on_with_the_same_samples_when_a_stage_is_killed(
    role: str, name: str, replicas: Running, recorded: Recorded
) -> None:
    case = CASES[name]
    async with antiphon.AsyncClient(replicas.grpc_address) as client:
        generation = client.generate(
            case.text,
            modalities=("audio",),
            seed=recorded.seed(case),
            temperature=case.temperature,
            max_tokens=case.most_steps,
            options=options_of(case),
            include_ids=True,
            timeout_s=240,
        )
        at_first = partial(kill_used, replicas, role, REPLICAS)
        speech = await listen(generation, FRAME_WIDTH, at_first)
    check(speech, case, recorded)
    assert await failovers(replicas) == 1
