"""The deployment.yaml that the chart writes is the one that every process reads."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any

import pytest

from antiphon.deployment.schema import GatewayConfig
from antiphon.pipelines.registry import own_pipelines, pipeline_named
from antiphon_gateway.fleet.discovery.chosen import discovery_of, of_stages
from antiphon_tools.launcher.plan import EMBEDDED_MODEL
from tests.deploy.chart_colocation import place_of, stages_of
from tests.deploy.chart_rendering import PRESETS, preset, render


@pytest.mark.parametrize("name", PRESETS)
def test_stages_are_those_of_the_pipeline(name: str) -> None:
    deployment = render(preset(name)).deployment_file()
    assert set(deployment.stages) == set(pipeline_named(deployment.pipeline).roles)


@pytest.mark.parametrize("name", PRESETS)
def test_gateway_watches_the_headless_services(name: str) -> None:
    rendered = render(preset(name))
    services = rendered.of_kind("Service")
    deployment = rendered.deployment_file()
    discovery = deployment.gateway.discovery
    assert (discovery.kind, discovery.namespace) == ("kubernetes", "speech")
    # Gateways that have a scaler find each other, too; for the fleet only stages are discovered.
    gateways = {"gateway": "demo-antiphon-scaler"} if deployment.gateway.scaler.listen else {}
    names = {role: f"demo-antiphon-{role}" for role in deployment.stages} | gateways
    assert discovery.services == names
    assert discovery_of(deployment).last_sync is None
    assert of_stages(discovery).services.keys() == deployment.stages.keys()
    for role, stage in deployment.stages.items():
        assert stage.addresses == ()
        ports = services[discovery.services[role]]["spec"]["ports"]
        listens = {"grpc": stage.listen, "metrics": stage.metrics_listen}
        found = {p["name"]: f"[::]:{p['port']}" for p in ports}
        assert found == listens
        assert discovery.port_name in found


def test_gateway_is_reached_by_its_services_and_routes_names() -> None:
    service = "demo-antiphon-gateway"
    names = (service, *(f"{service}.speech{end}" for end in ("", ".svc", ".svc.cluster.local")))
    assert render({}).deployment_file().gateway.host_names == names
    routed = render(
        {
            "ingress": {"enabled": True, "host": "speech.example"},
            "httpRoute": {
                "enabled": True,
                "parentRefs": [{"name": "edge"}],
                "hostnames": ["*.speech.example"],
            },
            "gateway": {"config": {"host_names": ["balancer.example", "speech.example"]}},
        }
    )
    wanted = (*names, "speech.example", "*.speech.example", "balancer.example")
    assert routed.deployment_file().gateway.host_names == wanted


def test_addresses_are_the_headless_services_when_nobody_may_ask_the_api() -> None:
    rendered = render({"discovery": "static"})
    deployment = rendered.deployment_file()
    assert deployment.gateway.discovery.kind == "static"
    for role, stage in deployment.stages.items():
        assert stage.addresses == (f"dns:///demo-antiphon-{role}:50051",)
    gateway = rendered.pods()["demo-antiphon-gateway"]
    assert gateway["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in gateway
    assert not rendered.of_kind("Role") | rendered.of_kind("ServiceAccount")


@pytest.mark.parametrize("name", PRESETS)
def test_processes_listen_on_their_container_ports(name: str) -> None:
    rendered = render(preset(name))
    deployment, pods = rendered.deployment_file(), rendered.pods()

    def ports(container: dict[str, Any]) -> list[str]:
        return [f"[::]:{port['containerPort']}" for port in container["ports"]]

    pod_ip = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    for role, stage in deployment.stages.items():
        _, container = place_of(rendered, role)
        own = [stage.listen, stage.metrics_listen, stage.health_listen]
        assert [each for each in ports(container) if each in own] == own
        if len(stages_of(container)) == 1:
            assert ports(container) == own
        # Other processes reach it at its pod's own address, which is nobody else's meanwhile.
        assert stage.advertise == stage.listen.replace("[::]", "${POD_IP}")
        assert pod_ip in container["env"]
    gateway = deployment.gateway
    endpoints = [
        gateway.http_listen,
        gateway.grpc_listen,
        gateway.metrics_listen,
        gateway.scaler.listen,
    ]
    (container,) = pods["demo-antiphon-gateway"]["containers"]
    assert ports(container) == [each for each in endpoints if each]


@pytest.mark.parametrize("name", PRESETS)
def test_commands_run_modules_of_this_repository_on_the_mounted_file(name: str) -> None:
    rendered = render(preset(name))
    config = "demo-antiphon"
    for pod_name, pod in rendered.pods().items():
        if pod_name.endswith("-smoke"):
            continue
        for container in pod["containers"]:
            python, flag, module, *words = container["command"]
            path = words[words.index("--config") + 1]
            assert (module == "antiphon_gateway") is (not stages_of(container))
            assert (python, flag) == ("python", "-m")
            assert find_spec(f"{module}.__main__"), module
            mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
            volume = mounts[str(PurePosixPath(path).parent)]
            assert {"name": volume, "configMap": {"name": config}} in pod["volumes"]
            assert PurePosixPath(path).name in rendered.of_kind("ConfigMap")[config]["data"]


def test_model_lies_in_the_mounted_volume_when_it_is_on_a_claim() -> None:
    rendered = render(preset("nvidia"))
    model = PurePosixPath(rendered.deployment_file().model)
    (container,) = rendered.pods()["demo-antiphon-thinker"]["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert PurePosixPath(mounts["model"]) in (model, *model.parents)


@pytest.mark.parametrize("name", ["default", "kind-cpu"])
def test_model_is_the_embedded_one_when_there_is_no_volume(name: str) -> None:
    assert render(preset(name)).deployment_file().model == f"/app/{EMBEDDED_MODEL}"


def test_device_and_dtype_follow_the_accelerator_unless_set() -> None:
    stages = {
        "thinker": {"accelerator": {"type": "nvidia"}},
        "talker": {
            "accelerator": {"type": "amd"},
            "config": {"dtype": "float32"},
            "image": {"tag": "rocm"},
        },
    }
    deployment = render({"stages": stages}).deployment_file()
    chosen = {role: (each.device, each.dtype) for role, each in deployment.stages.items()}
    assert chosen == {
        "thinker": ("cuda", "bfloat16"),
        "talker": ("cuda", "float32"),
        "code2wav": ("cpu", None),
    }


def test_every_stage_of_a_pipeline_gets_a_dtype_that_it_computes_in_when_accelerated() -> None:
    for name, pipeline in own_pipelines().items():
        values = preset("nvidia") | {"stages": {}}
        values["model"] |= {"pipeline": name}
        deployment = render(values).deployment_file()
        chosen = {role: (each.device, each.dtype) for role, each in deployment.stages.items()}
        assert chosen == {each.role: ("cuda", each.dtype or "bfloat16") for each in pipeline.stages}
    assert own_pipelines()["qwen2_5_omni"].stage("token2wav").dtype == "float32"


def test_settings_arrive_unchanged_when_they_are_large_or_fractional() -> None:
    deployment = render(
        {
            "stageDefaults": {
                "config": {"sessions": {"hold_bytes": 1 << 33, "stall_timeout_s": 2.5}}
            },
            "gateway": {
                "config": {"limits": {"max_body_bytes": 123456789}, "queue": {"max_calls": 7}}
            },
            "delivery": {"codes": "whole"},
            "model": {"name": "true"},
        }
    ).deployment_file()
    assert deployment.stage("talker").sessions.hold_bytes == 1 << 33
    assert deployment.stage("talker").sessions.stall_timeout_s == 2.5
    assert deployment.gateway.limits.max_body_bytes == 123456789
    assert deployment.gateway.queue.max_calls == 7
    assert deployment.gateway.limits.request_timeout_s == GatewayConfig().limits.request_timeout_s
    assert deployment.delivery == {"codes": "whole"}
    assert deployment.model_name == "true"


def test_gateway_has_its_certificate_from_the_secret() -> None:
    rendered = render({"gateway": {"tlsSecret": "speech-tls"}})
    tls = rendered.deployment_file().gateway.tls
    assert tls is not None
    pod = rendered.pods()["demo-antiphon-gateway"]
    (container,) = pod["containers"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "tls"]
    files = {PurePosixPath(tls.certificate_file), PurePosixPath(tls.key_file)}
    assert files == {PurePosixPath(mount["mountPath"]) / name for name in ("tls.crt", "tls.key")}
    assert {"name": "tls", "secret": {"secretName": "speech-tls"}} in pod["volumes"]
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    ports = rendered.of_kind("Service")["demo-antiphon-gateway"]["spec"]["ports"]
    assert [each["appProtocol"] for each in ports] == ["https", "https"]
    (smoke,) = rendered.pods()["demo-antiphon-smoke"]["containers"]
    assert "https://demo-antiphon-gateway:8000" in smoke["command"]
    assert "--insecure https://127.0.0.1:8000" in rendered.notes
    plain = render()
    assert plain.deployment_file().gateway.tls is None
    gateway = plain.pods()["demo-antiphon-gateway"]
    assert "scheme" not in gateway["containers"][0]["readinessProbe"]["httpGet"]
