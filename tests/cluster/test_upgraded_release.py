"""`helm upgrade` from what the chart of a released version renders, and `helm rollback`, with load.

All Deployments replace their pods at the same time, as their manifests say. The processes of both
versions are those of this checkout: what changes is what the chart states, such as commands, ports,
probes, hooks and the configuration. test_other_version.py mixes the code of two versions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.bell_fleet import DEPLOYMENTS, MODEL, BellFleet, bell_fleet
from tests.cluster.steady_load import SteadyLoad, steady_load
from tests.deploy.chart_rendering import KubernetesObject
from tests.deploy.released_charts import BELLS, RELEASED, recorded

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

ANSWERS = 8


@pytest.mark.parametrize("version", RELEASED)
async def test_no_answer_is_lost_or_different_while_a_release_is_upgraded_and_rolled_back(
    version: str, tmp_path: Path
) -> None:
    released = recorded(version)[BELLS]
    async with (
        bell_fleet(tmp_path, objects=released.objects) as fleet,
        steady_load(fleet.http_address, fleet.grpc_address, 2, MODEL) as load,
    ):
        await load.wait_answers(ANSWERS)
        for objects in (released.rendered_now(), released.objects):
            await _apply(fleet, load, objects)
    assert load.failures == []
    assert len(load.heard) == 1, "all answers are the same"
    happened = [what for _, what in fleet.cluster.story]
    assert not {"SIGKILL", "not alive"} & set(happened)
    assert not [what for what in happened if what.startswith("died")]


async def _apply(fleet: BellFleet, load: SteadyLoad, objects: list[KubernetesObject]) -> None:
    """Every pod is replaced: the image has another tag."""
    before = {pod.name for name in DEPLOYMENTS for pod in fleet.cluster.pods(name)}
    await fleet.cluster.upgrade(objects)
    after = {pod.name for name in DEPLOYMENTS for pod in fleet.cluster.pods(name)}
    assert len(before) == len(after) == 2 * len(DEPLOYMENTS)
    assert before.isdisjoint(after)
    await load.wait_answers(ANSWERS)
    assert load.failures == []
