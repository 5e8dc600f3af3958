"""Two stages in one pod, as the chart renders it: gateways find both, and they share memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon_testkit.fake_kubernetes import serve_api
from tests.cluster.bell_fleet import FAMILY, GATEWAY, HTTP_PORT, MODEL, ROOT
from tests.cluster.kubelet import Cluster
from tests.deploy.chart_rendering import render

pytestmark = pytest.mark.processes

TOWER = "speech-antiphon-tower"
COMPOSER_METRICS = 50052
LONG_S = 120.0
# However slow this machine is, what starts does not fail.
PATIENT = {"probes": {"startup": {"failureThreshold": 100_000}}}
VALUES: dict[str, Any] = {
    "model": {
        "source": "hostPath",
        "hostPath": "/models",
        "directory": MODEL,
        "pipeline": "carillon",
    },
    "stages": {"composer": {"config": {"slots": 2}}, "ringer": {}},
    "colocated": {"tower": {"stages": ["composer", "ringer"], "accelerators": "shared"} | PATIENT},
    "gateway": PATIENT | {"staysReady": True},
}
BODY = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Ring"}],
    "modalities": ["audio"],
    "audio": {"format": "pcm16"},
}


async def test_stages_of_one_pod_are_found_at_their_ports_and_share_memory(tmp_path: Path) -> None:
    model, pods = tmp_path / "models" / MODEL, tmp_path / "pods"
    for folder in (model, pods):
        folder.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({"architectures": ["CarillonForRinging"]}))
    rendered = render(VALUES, release="speech")
    async with (
        serve_api() as api,
        Cluster(
            rendered.objects,
            api,
            pods,
            replaced={"/models": str(model.parent)},
            environment={"PYTHONPATH": os.pathsep.join((str(ROOT), str(FAMILY)))},
        ) as cluster,
    ):
        for name in (TOWER, GATEWAY):
            await cluster.wait_ready(name, 1)
        (tower,), (gateway,) = cluster.pods(TOWER), cluster.pods(GATEWAY)
        async with httpx.AsyncClient(timeout=LONG_S) as http:
            url = f"http://{gateway.address}:{HTTP_PORT}"
            answer = await http.post(f"{url}/v1/chat/completions", json=BODY)
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["audio"]["data"]
            health = (await http.get(f"{url}/health")).json()
            found = {role: each["address"] for role, each in health["stages"].items()}
            assert found == {
                "composer": f"{tower.address}:50051",
                "ringer": f"{tower.address}:50061",
            }
            shown = await http.get(f"http://{tower.address}:{COMPOSER_METRICS}/metrics")
        (link,) = (
            line
            for line in shown.text.splitlines()
            if line.startswith("antiphon_link_transport{") and line.endswith(" 1.0")
        )
        assert 'transport="shared_memory"' in link
        tower.stop()
        await cluster.wait(lambda: not cluster.pods(TOWER))
        # It has both stages, and the gateway stays: clients are told by it.
        assert gateway.in_service
        async with httpx.AsyncClient(timeout=LONG_S) as http:
            refused = await http.post(f"{url}/v1/chat/completions", json=BODY)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert "not ready" not in [what for name, what in cluster.story if name == gateway.name]
