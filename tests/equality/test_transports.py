"""The main law on every transport, and while the shared memory is too small for what is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio

import antiphon
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.v1 import stage_pb2
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.conversations import conversation
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.local_deployment import local_deployment
from antiphon_testkit.qwen3_omni.reference import Case
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.equality.asking import RATE, ask, check, groups
from tests.equality.truth import Truth

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

ROLES = ("thinker", "talker", "code2wav")
# The smallest slab takes payloads up to half of it, less than the longest prompt's rows.
SMALL_SLAB = 128 << 10
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "shared_memory": {"transport": "shared_memory"},
    "gloo": {"transport": "nccl"},
    "grpc": {"transport": "grpc", "ring": False},
    "small-slab": {"transport": "auto", "slab_bytes": SMALL_SLAB},
}


def hum(seconds: float, hertz: float) -> npt.NDArray[np.float32]:
    """A recording."""
    time = np.arange(int(seconds * RATE)) / RATE
    return (0.4 * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


TEXT_CASES = [
    Case(conversation(("user", text)), talker_max_tokens=30)
    for text in ("Hello, how are you today?", "Say something about water.", "x")
]
AUDIO_CASES, LONG_AUDIO_CASES = (
    [
        Case(conversation(("user", [hum(seconds, hertz)])), talker_max_tokens=20)
        for hertz in (300.0, 200.0, 500.0, 250.0)
    ]
    for seconds in (8.0, 22.0)
)


@pytest.fixture(scope="package", params=["small"])
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=list(DEPLOYMENTS))
async def deployed(
    request: pytest.FixtureRequest, checkpoint: Path
) -> AsyncIterator[tuple[str, Running]]:
    stages = {role: stage_config(**DEPLOYMENTS[request.param]) for role in ROLES}
    async with WarmLauncher(local_deployment(checkpoint, **stages)) as running:
        yield request.param, running


async def links(running: Running, role: str) -> list[stage_pb2.LinkState]:
    async with grpc.aio.insecure_channel(
        running.processes[role].address, options=CHANNEL_OPTIONS
    ) as channel:
        told = await stage_stub(channel).Describe(stage_pb2.DescribeRequest())
        return list(told.links)


def fallbacks(counts: Mapping[str, int]) -> int:
    return sum(number for name, number in counts.items() if name.startswith("fallback."))


async def test_answer_equals_the_reference_on_the_transport(
    deployed: tuple[str, Running], truth: Truth
) -> None:
    name, running = deployed
    audio = LONG_AUDIO_CASES if name == "small-slab" else AUDIO_CASES
    async with antiphon.AsyncClient(running.grpc_address) as client:
        for case in [*truth.safe(TEXT_CASES, 1), *truth.safe(audio, 1)]:
            check(await ask(client, case, groups=groups(truth)), truth.of(case))
    (rows,) = await links(running, "thinker")
    expected = "shared_memory" if name == "small-slab" else name
    assert rows.transport == expected
    if name == "small-slab":
        assert fallbacks(rows.counts) > 0
    else:
        assert rows.counts[f"chunks.{expected}"] > 0
        assert not fallbacks(rows.counts)
    assert (rows.counts["carried.ring"] > 0) is DEPLOYMENTS[name].get("ring", True)
    for role in ("talker", "code2wav"):
        assert {link.transport for link in await links(running, role)} == {expected}
