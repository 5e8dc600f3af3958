"""Several stages in one pod: what their containers, services, scalers and monitors have."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.chart_colocation import place_of, stages_of
from tests.deploy.chart_rendering import Values, preset, render

SPEECH, TALKER, CODE2WAV = (f"demo-antiphon-{name}" for name in ("speech", "talker", "code2wav"))
GPU: Values = {"accelerator": {"type": "nvidia"}}


def pod_of(**said: Any) -> Values:
    return {"colocated": {"speech": {"stages": ["talker", "code2wav"]} | said}}


def test_each_stage_has_a_container_and_ports_of_its_own() -> None:
    rendered = render(pod_of(replicas=3, nodeSelector={"pool": "gpu"}))
    deployments = rendered.of_kind("Deployment")
    assert deployments.keys() == {SPEECH, "demo-antiphon-thinker", "demo-antiphon-gateway"}
    assert deployments[SPEECH]["spec"]["replicas"] == 3
    pod = rendered.pods()[SPEECH]
    assert pod["nodeSelector"] == {"pool": "gpu"}
    assert [stages_of(each) for each in pod["containers"]] == [["talker"], ["code2wav"]]
    stages = rendered.deployment_file().stages
    assert (stages["talker"].listen, stages["code2wav"].listen) == (
        "[::]:50051",
        "[::]:50061",
    )
    assert stages["thinker"].listen == "[::]:50051"
    assert "prometheus.io/port" not in rendered.annotations(SPEECH)
    assert "resourceClaims" not in pod


def test_stages_that_share_accelerators_are_one_container_under_the_launcher() -> None:
    stages = {"talker": {"config": {"engine": "vllm"}}, "code2wav": {"config": {"slots": 3}}}
    pod = pod_of(accelerators="shared", accelerator={"type": "nvidia", "count": 2})
    rendered = render(pod | {"stages": stages})
    (container,) = rendered.pods()[SPEECH]["containers"]
    assert container["command"] == [
        *("python", "-m", "antiphon_tools.launcher", "stages", "talker", "code2wav"),
        *("--config", "/etc/antiphon/deployment.yaml", "--health-listen", "[::]:50055"),
    ]
    # One image has what each of them needs.
    assert container["image"].endswith("-vllm")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    deployment = rendered.deployment_file()
    assert {deployment.stages[role].device for role in ("talker", "code2wav")} == {"cuda"}
    assert deployment.stages["code2wav"].slots == 3
    assert deployment.stages["thinker"].device == "cpu"


def test_a_claim_is_for_the_devices_of_a_pod() -> None:
    accelerator = {"type": "amd", "count": 2}
    values = pod_of(accelerators="claimed", accelerator=accelerator)
    defaults = {"image": {"tag": "rocm"}}
    rendered = render(values | {"stageDefaults": defaults}, kubernetes="1.34")
    (claim,) = rendered.of_kind("ResourceClaimTemplate").values()
    (request,) = claim["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {
        "deviceClassName": "gpu.amd.com",
        "allocationMode": "ExactCount",
        "count": 2,
    }
    for container in rendered.pods()[SPEECH]["containers"]:
        assert set(container["resources"]["limits"]) == {"memory"}


def test_the_talker_is_alone_on_one_of_two_gpus() -> None:
    rendered = render(preset("two-gpus"))
    gpus = {
        name: [c["resources"]["limits"].get("nvidia.com/gpu", 0) for c in pod["containers"]]
        for name, pod in rendered.pods().items()
    }
    assert sum(sum(each) for each in gpus.values()) == 2
    name, container = place_of(rendered, "talker")
    assert (stages_of(container), gpus[name]) == (["talker"], [1])


@pytest.mark.parametrize("role", ["talker", "code2wav"])
def test_a_pod_has_time_for_the_longest_drain_and_the_longest_start(role: str) -> None:
    slow = {"probes": {"startup": {"failureThreshold": 360}}, "config": {"drain_s": 700}}
    rendered = render(pod_of() | {"stages": {role: slow}})
    spec = rendered.of_kind("Deployment")[SPEECH]["spec"]
    assert rendered.pods()[SPEECH]["terminationGracePeriodSeconds"] == 10 + 700 + 10
    assert spec["progressDeadlineSeconds"] == 3600 + 720 + 600


def test_keda_scales_the_pod_by_every_stage_in_it() -> None:
    rendered = render(pod_of(autoscaling={"enabled": True, "maxReplicas": 9}))
    ((name, scaler),) = rendered.of_kind("ScaledObject").items()
    assert name == scaler["spec"]["scaleTargetRef"]["name"] == SPEECH
    triggers = scaler["spec"]["triggers"]
    assert [each["metadata"]["stage"] for each in triggers] == ["talker", "code2wav"]
    assert "replicas" not in rendered.of_kind("Deployment")[SPEECH]["spec"]


def test_somebody_else_sets_the_number_of_pods_when_it_is_null() -> None:
    rendered = render(pod_of(replicas=None))
    assert "replicas" not in rendered.of_kind("Deployment")[SPEECH]["spec"]


def test_series_of_every_stage_of_a_pod_are_reached() -> None:
    open_to = {"networkPolicy": {"enabled": True, "monitors": [{"podSelector": {}}]}}
    rendered = render(pod_of() | open_to | {"metrics": {"podMonitor": {"enabled": True}}})
    (monitor,) = rendered.of_kind("PodMonitor").values()
    ports = [each["port"] for each in monitor["spec"]["podMetricsEndpoints"]]
    assert ports == ["metrics", "http", "metrics-1"]
    ingress = rendered.of_kind("NetworkPolicy")[SPEECH]["spec"]["ingress"]
    assert [port["port"] for port in ingress[1]["ports"]] == [50052, 50062]


def test_each_stage_of_a_pod_has_its_own_checkpoint_when_that_is_asked_for() -> None:
    download = {"enabled": True, "command": ["fetch"]}
    model = {"source": "claim", "pipeline": "qwen3_omni", "download": download}
    shared = render(pod_of() | {"model": model}).pods()[SPEECH]
    assert [each["name"] for each in shared["initContainers"]] == ["download-talker"]
    apart = render(pod_of() | {"model": model | {"subPathPerStage": True}}).pods()[SPEECH]
    for containers in (apart["initContainers"], apart["containers"]):
        mounts = [m for each in containers for m in each["volumeMounts"] if m["name"] == "model"]
        assert [each["subPath"] for each in mounts] == ["talker", "code2wav"]


def test_pods_are_replaced_when_one_of_their_stages_changes() -> None:
    def checksums(values: Values) -> dict[str, str]:
        rendered = render(pod_of() | values)
        names = (SPEECH, "demo-antiphon-thinker")
        return {name: rendered.annotations(name)["checksum/config"] for name in names}

    before = checksums({})
    after = checksums({"stages": {"code2wav": {"config": {"slots": 9}}}})
    assert before[SPEECH] != after[SPEECH]
    assert before["demo-antiphon-thinker"] == after["demo-antiphon-thinker"]
