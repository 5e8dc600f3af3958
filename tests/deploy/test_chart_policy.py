"""What the chart promises of single objects; chart_policies.py has what holds for all of them."""

from __future__ import annotations

import pytest

from tests.deploy.chart_policies import LABEL, LABEL_VALUE
from tests.deploy.chart_rendering import PRESETS, Rendered, containers, preset, render

HEALTH_PORT = 50053


@pytest.fixture(params=PRESETS)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return render(preset(request.param))


def test_stages_are_probed_over_grpc_with_half_an_hour_to_start() -> None:
    for name, pod in render().pods().items():
        if name.endswith(("gateway", "smoke")):
            continue
        (stage,) = pod["containers"]
        probes = [stage[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
        assert [probe["grpc"] for probe in probes] == [
            {"port": HEALTH_PORT, "service": answer} for answer in ("ready", "ready", "alive")
        ]
        assert probes[0]["periodSeconds"] * probes[0]["failureThreshold"] == 30 * 60


def test_gateway_liveness_does_not_ask_about_the_stages() -> None:
    (gateway,) = render().pods()["demo-antiphon-gateway"]["containers"]
    assert gateway["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert gateway["livenessProbe"]["tcpSocket"] == {"port": 8000}


def test_gateway_is_ready_for_the_output_that_is_asked_for() -> None:
    rendered = render({"gateway": {"readyOutput": "text"}})
    (gateway,) = rendered.pods()["demo-antiphon-gateway"]["containers"]
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/health?output=text"


def test_selector_is_free_of_versions_because_it_can_never_change(rendered: Rendered) -> None:
    for name, deployment in rendered.of_kind("Deployment").items():
        assert deployment["spec"]["selector"]["matchLabels"] == {
            "app.kubernetes.io/name": "antiphon",
            "app.kubernetes.io/instance": "demo",
            "app.kubernetes.io/component": name.removeprefix("demo-antiphon-"),
        }


def test_accelerator_request_equals_limit() -> None:
    for kind, resource in (("nvidia", "nvidia.com/gpu"), ("amd", "amd.com/gpu")):
        defaults = {"accelerator": {"type": kind, "count": 2}, "image": {"tag": "dev"}}
        pods = render({"stageDefaults": defaults}).pods()
        resources = pods["demo-antiphon-talker"]["containers"][0]["resources"]
        assert resources["requests"][resource] == resources["limits"][resource] == 2
        assert resource not in pods["demo-antiphon-gateway"]["containers"][0]["resources"]["limits"]


def test_no_accelerator_is_asked_for_when_stage_runs_on_cpus() -> None:
    for pod in render().pods().values():
        for container in containers(pod):
            assert set(container["resources"]["limits"]) == {"memory"}


def test_stages_never_surge_because_a_gpu_has_room_for_one(rendered: Rendered) -> None:
    for name, deployment in rendered.of_kind("Deployment").items():
        surge = deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
        assert surge == (1 if name.endswith("-gateway") else 0)


def test_checkpoint_is_read_only_to_the_process_that_serves_it() -> None:
    for name, pod in render(preset("nvidia")).pods().items():
        mounts = {m["name"]: m for c in pod["containers"] for m in c["volumeMounts"]}
        assert mounts.get("model", {}).get("readOnly", False) is not name.endswith(
            ("-gateway", "-smoke")
        )


def test_shared_memory_is_a_bounded_memory_volume_on_stages(rendered: Rendered) -> None:
    for name, pod in rendered.pods().items():
        if name.endswith(("-gateway", "-smoke")):
            continue
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in pod["containers"]:
            (mount,) = (m for m in container["volumeMounts"] if m["mountPath"] == "/dev/shm")
            assert volumes[mount["name"]]["emptyDir"]["medium"] == "Memory"
            assert volumes[mount["name"]]["emptyDir"]["sizeLimit"]


@pytest.mark.parametrize("release", ["demo", "a.b", "antiphon", "x" * 53, "team-" * 10 + "a"])
def test_names_are_dns_labels_when_release_is_called(release: str) -> None:
    values = {"model": {"pipeline": "long"}, "stages": {"a_very_long_stage_name": {}}}
    objects = render(values, release=release).objects
    for each in objects:
        assert LABEL.fullmatch(each["metadata"]["name"])
        assert all(LABEL_VALUE.fullmatch(v) for v in each["metadata"]["labels"].values())


def test_names_differ_when_long_releases_begin_alike() -> None:
    names = {
        tuple(render(release="r" * 50 + suffix).of_kind("Deployment")) for suffix in ("a", "b")
    }
    assert len(names) == 2


def test_no_secret_is_rendered_nor_mounted_but_for_certificates(rendered: Rendered) -> None:
    assert not rendered.of_kind("Secret")
    # The presets name no other Secrets; who has which is a policy's concern.
    certificates = {each["spec"]["secretName"] for each in rendered.of_kind("Certificate").values()}
    mounted = {
        volume["secret"]["secretName"]
        for pod in rendered.pods().values()
        for volume in pod["volumes"]
        if "secret" in volume
    }
    assert mounted == certificates


def test_the_pod_of_helm_test_stays_until_its_log_was_read() -> None:
    pod = render().of_kind("Pod")["demo-antiphon-smoke"]["metadata"]["annotations"]
    # Helm reads logs after it has deleted what has succeeded.
    assert pod == {"helm.sh/hook": "test", "helm.sh/hook-delete-policy": "before-hook-creation"}


def test_gateway_that_stays_ready_asks_about_the_stages_until_they_are_ready_once() -> None:
    values = {"gateway": {"staysReady": True, "readyOutput": "text"}}
    rendered = render(values)
    (gateway,) = rendered.pods()["demo-antiphon-gateway"]["containers"]
    start = gateway["startupProbe"]
    assert start["httpGet"] == {"path": "/health?output=text", "port": 8000}
    assert gateway["readinessProbe"]["tcpSocket"] == gateway["livenessProbe"]["tcpSocket"]
    assert "httpGet" not in gateway["readinessProbe"]
    # As long as the slowest stage may take to be rolled out.
    deployments = rendered.of_kind("Deployment")
    stage_s = deployments["demo-antiphon-talker"]["spec"]["progressDeadlineSeconds"]
    assert start["periodSeconds"] * start["failureThreshold"] >= stage_s
    assert deployments["demo-antiphon-gateway"]["spec"]["progressDeadlineSeconds"] > stage_s
