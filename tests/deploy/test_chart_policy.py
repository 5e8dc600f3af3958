"""What an API server or Pod Security refuses and no schema sees, and what the chart promises."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from chart_rendering import PRESETS, KubernetesObject, Rendered, containers, preset, render

VOLUMES_ALLOWED = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral",
    "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
HEALTH_PORT = 50051


@pytest.fixture(params=PRESETS)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return render(preset(request.param))


def restricted_faults(pod: KubernetesObject) -> Iterator[str]:
    """What Pod Security "restricted" has against a pod's spec."""
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    for volume in pod.get("volumes", []):
        yield from (f"volume {kind}" for kind in set(volume) - {"name"} - VOLUMES_ALLOWED)
    shared = pod.get("securityContext", {})
    for container in containers(pod):
        own = shared | container.get("securityContext", {})
        capabilities = own.get("capabilities", {})
        if own.get("privileged"):
            yield "privileged"
        if own.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if "ALL" not in capabilities.get("drop", []) or capabilities.get("add"):
            yield "capabilities"
        if own.get("runAsNonRoot") is not True or own.get("runAsUser") == 0:
            yield "runAsNonRoot"
        if own.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccompProfile"
        yield from ("hostPort" for port in container.get("ports", []) if "hostPort" in port)


def test_pods_pass_restricted_pod_security(rendered: Rendered) -> None:
    for name, pod in rendered.pods().items():
        assert not list(restricted_faults(pod)), name


def test_restricted_check_reports_hostpath_when_it_is_asked_for() -> None:
    model = {"source": "hostPath", "hostPath": "/weights", "pipeline": "qwen3_omni"}
    pods = render({"model": model}).pods()
    assert list(restricted_faults(pods["demo-antiphon-thinker"])) == ["volume hostPath"]


def test_pods_have_no_token_and_no_service_variables(rendered: Rendered) -> None:
    for pod in rendered.pods().values():
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False


def test_containers_have_a_read_only_root_and_a_tmp(rendered: Rendered) -> None:
    for pod in rendered.pods().values():
        empty = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        for container in containers(pod):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
            assert mounts["/tmp"] in empty
            assert {"name": "HOME", "value": "/tmp"} in container["env"]


def test_containers_have_requests_and_a_memory_limit(rendered: Rendered) -> None:
    for pod in rendered.pods().values():
        for container in containers(pod):
            resources = container["resources"]
            assert {"cpu", "memory"} <= resources["requests"].keys()
            assert "memory" in resources["limits"]


def test_probes_are_complete_and_use_a_container_port_by_number(rendered: Rendered) -> None:
    for deployment in rendered.of_kind("Deployment").values():
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            ports = {port["containerPort"] for port in container["ports"]}
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = container[kind]
                (handler,) = (
                    probe[key] for key in ("grpc", "httpGet", "tcpSocket") if key in probe
                )
                assert handler["port"] in ports
                assert probe["timeoutSeconds"] >= 5


def test_stages_are_probed_over_grpc_with_half_an_hour_to_start() -> None:
    for name, pod in render().pods().items():
        if name.endswith(("gateway", "smoke")):
            continue
        (stage,) = pod["containers"]
        probes = [stage[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
        assert [probe["grpc"] for probe in probes] == [{"port": HEALTH_PORT}] * 3
        assert probes[0]["periodSeconds"] * probes[0]["failureThreshold"] == 30 * 60


def test_gateway_liveness_does_not_ask_about_the_stages() -> None:
    (gateway,) = render().pods()["demo-antiphon-gateway"]["containers"]
    assert gateway["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert gateway["livenessProbe"]["tcpSocket"] == {"port": 8000}


def test_gateway_is_ready_for_the_output_that_is_asked_for() -> None:
    rendered = render({"gateway": {"readyOutput": "text"}})
    (gateway,) = rendered.pods()["demo-antiphon-gateway"]["containers"]
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/health?output=text"


def test_selectors_match_exactly_their_own_pods(rendered: Rendered) -> None:
    deployments = rendered.of_kind("Deployment")
    labels = {
        name: each["spec"]["template"]["metadata"]["labels"] for name, each in deployments.items()
    }
    labels |= {name: each["metadata"]["labels"] for name, each in rendered.of_kind("Pod").items()}

    def selected(selector: dict[str, str]) -> list[str]:
        return [name for name, own in labels.items() if selector.items() <= own.items()]

    for name, deployment in deployments.items():
        assert selected(deployment["spec"]["selector"]["matchLabels"]) == [name]
    for name, service in rendered.of_kind("Service").items():
        assert selected(service["spec"]["selector"]) == [name]


def test_selector_is_free_of_versions_because_it_can_never_change(rendered: Rendered) -> None:
    for name, deployment in rendered.of_kind("Deployment").items():
        assert deployment["spec"]["selector"]["matchLabels"] == {
            "app.kubernetes.io/name": "antiphon",
            "app.kubernetes.io/instance": "demo",
            "app.kubernetes.io/component": name.removeprefix("demo-antiphon-"),
        }


def test_service_ports_are_container_ports_with_unique_names(rendered: Rendered) -> None:
    pods = rendered.pods()
    for name, service in rendered.of_kind("Service").items():
        (container,) = pods[name]["containers"]
        offered = {(port["name"], port["containerPort"]) for port in container["ports"]}
        assert {(p["name"], p["targetPort"]) for p in service["spec"]["ports"]} == offered
        assert len({p["name"] for p in service["spec"]["ports"]}) == len(service["spec"]["ports"])
        assert all(port["appProtocol"] for port in service["spec"]["ports"])


def test_stage_services_are_headless_and_the_gateways_is_not(rendered: Rendered) -> None:
    for name, service in rendered.of_kind("Service").items():
        headless = service["spec"].get("clusterIP") == "None"
        assert headless is not name.endswith("-gateway")


def test_accelerator_request_equals_limit() -> None:
    for kind, resource in (("nvidia", "nvidia.com/gpu"), ("amd", "amd.com/gpu")):
        pods = render({"stageDefaults": {"accelerator": {"type": kind, "count": 2}}}).pods()
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
        (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["mountPath"] == "/dev/shm")
        assert volumes[mount["name"]]["emptyDir"]["medium"] == "Memory"
        assert volumes[mount["name"]]["emptyDir"]["sizeLimit"]


def test_every_mounted_volume_exists_and_every_volume_is_mounted(rendered: Rendered) -> None:
    for pod in rendered.pods().values():
        mounted = {mount["name"] for each in containers(pod) for mount in each["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


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


def test_no_secret_is_rendered(rendered: Rendered) -> None:
    assert not rendered.of_kind("Secret")
    for pod in rendered.pods().values():
        assert not [volume for volume in pod["volumes"] if "secret" in volume]
