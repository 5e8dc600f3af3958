"""An answer of MiMo-Audio outlives a stage; its ids, codes and samples are the same.

Another talker goes on from the ids and the frames that the client has; another code2wav makes its
windows again, and what the client has is dropped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import pytest_asyncio

import antiphon
from antiphon.pipelines.mimo_audio import PIPELINE
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.gateway_settings import with_settings
from antiphon_testkit.local_deployment import local_deployment
from antiphon_testkit.mimo_audio.tiny_checkpoint import LANGUAGE_MODEL
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.equality.lost_replicas import kill_used
from tests.equality.mimo_audio.mimo_asking import ask, messages_of, options_of, sent_options
from tests.equality.mimo_audio.mimo_cases import CASES

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

REPLICAS = 2
AHEAD_S = 2.0
"""So little may be made ahead of the client that the answer cannot end before the client reads."""
CASE = next(each for each in CASES if each.name == "tts-english")
DRAWN = {"temperature": 1.0, "seed": 62, "max_tokens": 300}
"""A long answer, whose text and codes are drawn."""


@pytest_asyncio.fixture(loop_scope="session")
async def replicas(mimo_checkpoints: dict[str, Path]) -> AsyncIterator[Running]:
    """Two processes of each stage, new ones for each test: the answer needs the second one."""
    stages = dict.fromkeys(
        PIPELINE.roles, stage_config(slots=2, replicas=REPLICAS, right_context_codes=8)
    )
    deployment = local_deployment(mimo_checkpoints["marks"] / LANGUAGE_MODEL, **stages)
    ahead = {"max_ahead_seconds": AHEAD_S, "max_stage_ahead_seconds": AHEAD_S}
    gateway = with_settings(deployment.gateway, **ahead)
    deployment = msgspec.structs.replace(deployment, gateway=gateway)
    async with WarmLauncher(deployment) as running:
        yield running


@pytest.mark.parametrize("role", PIPELINE.roles)
async def test_an_answer_is_the_same_when_a_stage_is_killed_in_it(
    role: str, replicas: Running
) -> None:
    options = {name: value for name, value in options_of(CASE).items() if name == "task"}
    async with antiphon.AsyncClient(replicas.grpc_address) as client:
        undisturbed = await ask(client, CASE, options=sent_options(options), **DRAWN)
        assert undisturbed.deltas > 5
        generation = client.generate(
            messages_of(CASE),
            modalities=("text", "audio"),
            options=sent_options(options),
            include_ids=True,
            timeout_s=240,
            **DRAWN,
        )
        codes, samples, killed = b"", b"", False
        ids: list[int] = []
        async for event in generation:
            match event:
                case antiphon.TextDelta():
                    ids += event.token_ids
                case antiphon.AudioDelta():
                    codes += event.codes
                    samples += event.float32
                    if not killed:
                        killed = True
                        await kill_used(replicas, role, REPLICAS)
    assert killed
    assert ids == undisturbed.ids
    assert codes == undisturbed.codes.astype("<u2").tobytes()
    np.testing.assert_allclose(
        np.frombuffer(samples, "<f4"), undisturbed.samples, rtol=0, atol=1e-4
    )
