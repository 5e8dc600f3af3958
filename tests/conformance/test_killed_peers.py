"""A peer that is killed at a random moment costs nothing but its own link."""

from __future__ import annotations

import pytest

from antiphon.deployment.stage_config import TransportName
from antiphon_testkit.check_killed_peer import check_killed_consumer, check_killed_producer

# "nccl" is Gloo on the CPU, where these run.
TRANSPORTS = ("shared_memory", "grpc", pytest.param("nccl", id="gloo"))
CARRIED = [
    pytest.param("shared_memory", True, id="shared_memory-ring"),
    pytest.param("shared_memory", False, id="shared_memory-stream"),
    pytest.param("grpc", False, id="grpc-stream"),
    pytest.param("nccl", True, id="gloo-ring"),
]
KILLS = 50


@pytest.mark.parametrize(("transport", "ring"), CARRIED)
async def test_consumer_keeps_nothing_when_its_producer_is_killed(
    transport: TransportName, ring: bool
) -> None:
    await check_killed_producer(transport, seed=11, ring=ring)


@pytest.mark.parametrize(("transport", "ring"), CARRIED)
async def test_producer_keeps_nothing_when_its_consumer_is_killed(
    transport: TransportName, ring: bool
) -> None:
    await check_killed_consumer(transport, seed=12, ring=ring)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("check", [check_killed_producer, check_killed_consumer])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_peers_are_killed_many_times(transport: TransportName, check: object) -> None:
    for seed in range(KILLS // 2):
        await check(transport, seed)  # type: ignore[operator]
