"""The toy family as the chart installs it: its pods as processes, behind a Service's addresses."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon_testkit.fake_kubernetes import FakeApi, serve_api
from antiphon_tools.launcher.plan import import_path
from tests.cluster.kubelet import Cluster
from tests.cluster.service_address import ServiceAddress
from tests.deploy.chart_rendering import KubernetesObject, render

ROOT = Path(__file__).parents[2]
CARILLON = Path("tests", "families", "carillon")
FAMILY = ROOT / CARILLON
MODEL = "bells"
RELEASE = "speech"
GATEWAY, COMPOSER, RINGER = (
    f"{RELEASE}-antiphon-{name}" for name in ("gateway", "composer", "ringer")
)
DEPLOYMENTS = (GATEWAY, COMPOSER, RINGER)
HTTP_PORT, GRPC_PORT = 8000, 50050
STROKE_S = 0.02
"""Of the composer, for a letter of each text that it has."""


@dataclass(frozen=True)
class BellFleet:
    """What runs, and where clients find it: as host:port."""

    cluster: Cluster
    api: FakeApi
    http_address: str
    grpc_address: str

    async def move(self, deployment: str, checkout: Path) -> None:
        """Replace its pods by those of a checkout, one after the other."""
        self.cluster.set_environment(deployment, environment_of(checkout))
        await self.cluster.restart(deployment)

    def replicas(self, deployment: str) -> int:
        """How many pods it has now."""
        return len(self.cluster.pods(deployment))


def environment_of(checkout: Path) -> dict[str, str]:
    """Variables with which a process imports everything from a checkout."""
    # Without the working directory, which is another checkout.
    return {
        "PYTHONPATH": os.pathsep.join((import_path(checkout), str(checkout / CARILLON))),
        "PYTHONSAFEPATH": "1",
    }


def values_of(replicas: Mapping[str, int], slots: int) -> dict[str, Any]:
    """The chart's values: so many pods of each role, with so many slots."""
    stages = {
        role: {"replicas": replicas.get(role, 1), "config": {"slots": slots}}
        for role in ("composer", "ringer")
    }
    return {
        "model": {
            "source": "hostPath",
            "hostPath": "/models",
            "directory": MODEL,
            "pipeline": "carillon",
        },
        "stages": stages,
        # However slow this machine is, a gateway that starts does not fail.
        "gateway": {
            "replicas": replicas.get("gateway", 1),
            # As much quicker as the kubelet, which waits for `minReadySeconds`.
            "config": {"health": {"reconnect_s": 0.1}},
            "probes": {"startup": {"failureThreshold": 100_000}},
        },
    }


@asynccontextmanager
async def bell_fleet(
    path: Path,
    *,
    slots: int = 4,
    pace: float = 0.05,
    checkout: Path = ROOT,
    objects: Sequence[KubernetesObject] = (),
    **replicas: int,
) -> AsyncIterator[BellFleet]:
    """The release `speech` with so many replicas of each role, all of them ready.

    All processes run the `checkout`. The chart is this one's, unless `objects` are given, which
    another one has rendered. `pace`: by what the kubelet's waits are multiplied, those of preStop
    and between probes.
    """
    model, pods = path / "models" / MODEL, path / "pods"
    for folder in (model, pods):
        folder.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({"architectures": ["CarillonForRinging"]}))
    rendered = objects or render(values_of(replicas, slots), release=RELEASE).objects
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(serve_api())
        cluster = Cluster(
            rendered,
            api,
            pods,
            replaced={"/models": str(model.parent)},
            modules={"antiphon_services": "tests.cluster.paced_stage"},
            environment={**environment_of(checkout), "STEP_S": str(STROKE_S)},
            pace=pace,
        )
        await stack.enter_async_context(cluster)

        def ready(port: int) -> Sequence[str]:
            serving = (each for each in cluster.pods(GATEWAY) if each.in_service)
            return [f"{each.address}:{port}" for each in serving]

        http = await stack.enter_async_context(ServiceAddress(lambda: ready(HTTP_PORT)))
        grpc = await stack.enter_async_context(ServiceAddress(lambda: ready(GRPC_PORT)))
        for name in DEPLOYMENTS:
            await cluster.wait_ready(name, len(cluster.pods(name)))
        yield BellFleet(cluster, api, http.address, grpc.address)
