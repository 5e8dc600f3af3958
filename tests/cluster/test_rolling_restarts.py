"""Restarts and scaling of what the chart renders, while clients ask all the time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.cluster.bell_fleet import (
    DEPLOYMENTS,
    GATEWAY,
    HTTP_PORT,
    MODEL,
    RINGER,
    BellFleet,
    bell_fleet,
)
from tests.cluster.steady_load import TEXT, steady_load

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

# Half of the slots that two replicas have.
SLOTS = 4
CLIENTS_OF_A_KIND = 2
LONG_S = 240.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BellFleet]:
    path = tmp_path_factory.mktemp("bells")
    async with bell_fleet(path, slots=SLOTS, composer=2, ringer=2) as running:
        yield running


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(3, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
async def test_no_request_fails_while_everything_is_restarted_and_scaled(
    fleet: BellFleet, rounds: int
) -> None:
    cluster = fleet.cluster
    await cluster.scale(RINGER, 2)
    begun = len(cluster.story)
    async with steady_load(
        fleet.http_address, fleet.grpc_address, CLIENTS_OF_A_KIND, MODEL
    ) as load:
        await load.wait_answers(4)
        for name in DEPLOYMENTS * rounds:
            await cluster.restart(name)
            assert load.failures == [], name
        for replicas in (1, 3, 1):
            await cluster.scale(RINGER, replicas)
            await load.wait_answers(4)
    assert load.failures == []
    assert len(load.heard) == 1, "all answers are the same"
    happened = [what for _, what in cluster.story[begun:]]
    assert not {"SIGKILL", "not alive"} & set(happened)
    assert not [what for what in happened if what.startswith("died")]


async def test_a_stage_without_replicas_is_a_503_and_is_used_when_it_is_back(
    fleet: BellFleet,
) -> None:
    cluster = fleet.cluster
    (gateway,) = cluster.pods(GATEWAY)
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": TEXT}],
        "modalities": ["audio"],
        "audio": {"format": "pcm16"},
    }
    url = f"http://{gateway.address}:{HTTP_PORT}"
    async with httpx.AsyncClient(base_url=url, timeout=LONG_S) as http:
        for pod in cluster.pods(RINGER):
            pod.stop()
        await cluster.wait(lambda: not cluster.pods(RINGER) and not gateway.ready)
        refused = await http.post("/v1/chat/completions", json=body)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        error = refused.json()["error"]
        assert error["code"] == "unavailable"
        assert "the stage ringer is down" in error["message"]
        await cluster.scale(RINGER, 1)
        await cluster.wait_ready(GATEWAY, 1)
        answered = await http.post("/v1/chat/completions", json=body)
        assert answered.status_code == 200, answered.text
