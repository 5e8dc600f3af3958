"""The real services with two talkers, one of them killed in between."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import antiphon
from antiphon import SamplingRequest
from antiphon.deployment.schema import StageConfig
from antiphon.testing.local_deployment import local_deployment
from tools.launcher.launcher import Launcher

pytestmark = pytest.mark.processes

TALKERS = ("talker", "talker#2")
GREEDY = {"talker": SamplingRequest(temperature=0.0, max_tokens=8)}
MOST_ANSWERS = 40
# Each answer's audio is as near as half of it to the reference's, in 16 bits.
TOLERANCE = 2e-4 * 32768 + 1


async def spoken_frames(address: str) -> int:
    """Codec frames that a talker has made since its start."""
    async with antiphon.AsyncStageClient(address) as stage:
        return (await stage.describe()).output_positions["codes"]


async def test_two_talkers_say_the_same_and_one_goes_on_alone(tiny: Path) -> None:
    deployment = local_deployment(tiny, talker=StageConfig(replicas=2))
    async with (
        Launcher(deployment) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        assert set(running.processes) == {"thinker", *TALKERS, "code2wav", "gateway"}

        async def answer() -> tuple[str, npt.NDArray[np.int16]]:
            asked = client.generate("Hello", temperature=0.0, max_tokens=6, sampling=GREEDY)
            reply = await asked.collect()
            return reply.text, np.frombuffer(reply.pcm16, np.int16)

        async def check_same() -> None:
            text, audio = await answer()
            assert text == first[0]
            np.testing.assert_allclose(audio, first[1], atol=TOLERANCE)

        first = await answer()
        assert len(first[1])
        addresses = [running.processes[name].address for name in TALKERS]
        for _ in range(MOST_ANSWERS):
            await check_same()
            if all([await spoken_frames(each) for each in addresses]):
                break
        else:
            raise AssertionError("one of two talkers was never used")
        os.kill(running.processes[TALKERS[0]].pid, signal.SIGKILL)
        for _ in range(3):
            await check_same()
