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
from antiphon.pipelines.ming_tts import FRAME_WIDTH, PIPELINE, TALKER
from antiphon_testkit.gateway_settings import with_settings
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.equality.lost_replicas import failovers, kill_used
from tests.equality.ming_tts.flash_cases import NAMES, flash_cases
from tests.equality.ming_tts.ming_asking import Recorded, check, options_of
from tests.equality.ming_tts.ming_cases import Case, all_cases
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
async def replicas(
    request: pytest.FixtureRequest, ming_checkpoints: dict[str, Path]
) -> AsyncIterator[Running]:
    """Two processes of each stage, new ones for each test: the answer needs the second one."""
    stages = dict.fromkeys(PIPELINE.roles, StageConfig(slots=2, replicas=REPLICAS))
    deployment = local_deployment(ming_checkpoints[request.param], **stages)
    ahead = {"max_ahead_seconds": AHEAD_S, "max_stage_ahead_seconds": AHEAD_S}
    gateway = with_settings(deployment.gateway, **ahead)
    deployment = msgspec.structs.replace(deployment, gateway=gateway)
    async with WarmLauncher(deployment) as running:
        yield running


@pytest.mark.parametrize("replicas", ["windowed"], indirect=True)
@pytest.mark.parametrize("name", ["plain-long", "warm-clip"])
@pytest.mark.parametrize("role", PIPELINE.roles)
async def test_an_answer_goes_on_with_the_same_samples_when_a_stage_is_killed(
    role: str, name: str, replicas: Running, recorded: Recorded
) -> None:
    await lose(role, CASES[name], replicas, recorded)


@pytest.mark.parametrize("replicas", ["flash"], indirect=True)
async def test_an_answer_goes_on_in_its_second_utterance_when_the_talker_is_killed(
    replicas: Running,
) -> None:
    """It is long enough that the first one has been spoken by then."""
    recorded = Recorded.read("recorded_flash")
    case = next(each for each in flash_cases() if each.name == "flash-DB30-long-english")
    first, _ = recorded.rows[case.name]["utterances"]
    await lose(TALKER, case, replicas, recorded, after=first + 2)


async def lose(
    role: str, case: Case, replicas: Running, recorded: Recorded, *, after: int = 0
) -> None:
    """Ask for a case and kill the stage that speaks it, after so many frames."""
    async with antiphon.AsyncClient(replicas.grpc_address) as client:
        generation = client.generate(
            case.text,
            modalities=("audio",),
            voice=case.mode if case.mode in NAMES else "",
            seed=recorded.seed(case),
            temperature=case.temperature,
            max_tokens=case.most_steps,
            options=options_of(case),
            include_ids=True,
            timeout_s=240,
        )
        kill = partial(kill_used, replicas, role, REPLICAS)
        speech = await listen(generation, FRAME_WIDTH, kill, after=after)
    check(speech, case, recorded)
    assert await failovers(replicas) == 1
