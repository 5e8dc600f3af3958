"""The kubelet of tests: what it does to a pod, and what a service's slice says of it meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon_testkit.fake_kubernetes import FakeApi, serve_api
from tests.cluster.kubelet import Cluster
from tests.cluster.pod_process import Json

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
LABELS = {"app": "tiny"}


def _objects(folder: Path, *, grace_s: float = 60, replicas: int = 1) -> list[Json]:
    """What a chart would render for the tiny pod."""

    def probe(name: str, often: int) -> Json:
        get = {"path": f"/{name}", "port": 8000}
        return {"httpGet": get, "periodSeconds": 1, "failureThreshold": often, "timeoutSeconds": 30}

    container: dict[str, Any] = {
        "name": "tiny",
        "command": ["python", "-m", "tests.cluster.tiny_pod", "[::]:8000", str(folder)],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/tiny"}],
        # However slow this machine is, a pod that starts does not fail.
        "startupProbe": probe("started", 100_000),
        "readinessProbe": probe("unready", 1),
        "livenessProbe": probe("dead", 2),
        "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
    }
    spec = {
        "terminationGracePeriodSeconds": grace_s,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "tiny"}}],
    }
    return [
        {"kind": "Service", "metadata": {"name": "tiny"}, "spec": {"selector": LABELS}},
        {"kind": "ConfigMap", "metadata": {"name": "tiny"}, "data": {"tiny.yaml": "{}"}},
        {
            "kind": "Deployment",
            "metadata": {"name": "tiny"},
            "spec": {
                "replicas": replicas,
                "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
                "template": {"metadata": {"labels": LABELS}, "spec": spec},
            },
        },
    ]


@asynccontextmanager
async def _running(path: Path, **more: Any) -> AsyncIterator[tuple[Cluster, FakeApi, Path]]:
    state, pods = path / "state", path / "pods"
    for folder in (state, pods):
        folder.mkdir()
    async with (
        serve_api() as api,
        Cluster(
            _objects(state, **more), api, pods, replaced={}, environment={"PYTHONPATH": str(ROOT)}
        ) as cluster,
    ):
        await cluster.wait_ready("tiny", more.get("replicas", 1))
        yield cluster, api, state


def _conditions(api: FakeApi) -> list[dict[str, bool]]:
    """Of the slice's endpoints, each time that it was told."""
    told = [each["endpoints"] for _, _, each in api.told]
    return [each["conditions"] for endpoints in told for each in endpoints]


async def test_pod_leaves_its_service_before_its_process_is_told(tmp_path: Path) -> None:
    async with _running(tmp_path) as (cluster, api, _):
        (pod,) = cluster.pods("tiny")
        pod.stop()
        await cluster.wait(lambda: not cluster.pods("tiny"))
        # A probe that comes while the process ends may find it not ready, or not at all.
        happened = [what for _, what in cluster.story if what != "not ready"]
        assert happened == [
            *("created", "started", "started up", "ready", "terminating", "SIGTERM"),
            *("ended with 0", "gone", "removed"),
        ]
        assert cluster.said(pod) == "told to end\n"
    assert _conditions(api)[:3] == [
        {"ready": False, "serving": False, "terminating": False},
        {"ready": True, "serving": True, "terminating": False},
        {"ready": False, "serving": True, "terminating": True},
    ]
    assert api.told[-1][2]["endpoints"] == []


async def test_pod_is_killed_when_its_grace_period_is_over(tmp_path: Path) -> None:
    async with _running(tmp_path, grace_s=0.5) as (cluster, _, state):
        (state / "deaf").touch()
        (pod,) = cluster.pods("tiny")
        pod.stop()
        await cluster.wait(lambda: not cluster.pods("tiny"))
        happened = [what for _, what in cluster.story if what != "not ready"]
        assert happened[4:8] == ["terminating", "SIGTERM", "SIGKILL", "ended with -9"]


async def test_slice_says_that_a_pod_is_not_ready_when_its_probe_fails(tmp_path: Path) -> None:
    async with _running(tmp_path) as (cluster, api, state):
        (state / "unready").touch()
        await cluster.wait(lambda: not cluster.pods("tiny")[0].ready)
        assert _conditions(api)[-1]["ready"] is False
        (state / "unready").unlink()
        await cluster.wait_ready("tiny", 1)
        assert _conditions(api)[-1]["ready"] is True


async def test_container_is_started_again_when_it_is_not_alive(tmp_path: Path) -> None:
    async with _running(tmp_path) as (cluster, _, state):
        (state / "dead").touch()
        await cluster.wait(lambda: "not alive" in [what for _, what in cluster.story])
        (state / "dead").unlink()
        await cluster.wait(lambda: [w for _, w in cluster.story].count("ready") == 2)
        assert [what for _, what in cluster.story].count("started") == 2


async def test_deployment_is_restarted_one_pod_after_the_other(tmp_path: Path) -> None:
    async with _running(tmp_path, replicas=2) as (cluster, _, _):
        first = cluster.pods("tiny")
        assert len({pod.address for pod in first}) == 2
        await cluster.restart("tiny")
        assert not set(first) & set(cluster.pods("tiny"))
        leaving = [what for _, what in cluster.story if what in {"terminating", "ready"}]
        assert leaving == ["ready", "ready", *("terminating", "ready") * 2]
        await cluster.scale("tiny", 1)
        assert len(cluster.pods("tiny")) == 1
