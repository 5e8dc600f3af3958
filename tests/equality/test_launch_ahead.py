"""The main law while the talker launches steps before it reads the last one's frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

import antiphon
from antiphon.deployment.schema import StageConfig
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.gateway_settings import with_settings
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.warm.launcher import WarmLauncher
from tests.equality.asking import ask, check, groups, messages
from tests.equality.test_fidelity import (
    AUDIO_CASES,
    FRAMES_CASES,
    LENGTH_CASES,
    MIXED_CASES,
    TEXT_CASES,
)
from tests.equality.truth import Truth

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

# Two frames: the talker is held again and again.
AHEAD_SECONDS = 0.16


@pytest.fixture(scope="package", params=["small"])
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(checkpoint: Path, thinker: StageConfig) -> AsyncIterator[antiphon.AsyncClient]:
    talker = stage_config(launch_ahead=True)
    plain = local_deployment(checkpoint, thinker=thinker, talker=talker)
    gateway = with_settings(plain.gateway, max_stage_ahead_seconds=AHEAD_SECONDS)
    deployment = msgspec.structs.replace(plain, gateway=gateway)
    async with (
        WarmLauncher(deployment) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        yield client


async def test_answer_equals_the_reference_when_steps_are_launched_ahead(
    client: antiphon.AsyncClient, truth: Truth
) -> None:
    long = [case for case in FRAMES_CASES if len(truth.of(case).codes) > 50]
    for case in (
        *truth.safe(TEXT_CASES, 3),
        *truth.safe(AUDIO_CASES, 1),
        *truth.safe(LENGTH_CASES, 3),
        *truth.safe(long, 1),
    ):
        check(await ask(client, case, groups=groups(truth)), truth.of(case))


async def test_answers_equal_the_reference_when_others_leave_in_the_midst(
    client: antiphon.AsyncClient, truth: Truth
) -> None:
    (leaving,) = truth.safe(FRAMES_CASES, 1)
    staying = [*truth.safe(TEXT_CASES, 1), *truth.safe(AUDIO_CASES, 1), *truth.safe(MIXED_CASES, 1)]

    async def leave() -> None:
        async with client.generate(messages(leaving.conversation), timeout_s=120) as generation:
            async for event in generation:
                if isinstance(event, antiphon.AudioDelta):
                    break

    # Those of the second round get slots that others have left.
    for _ in range(2):
        _, *answers = await asyncio.gather(
            leave(), *(ask(client, case, groups=groups(truth)) for case in staying)
        )
        for case, answer in zip(staying, answers, strict=True):
            check(answer, truth.of(case))
