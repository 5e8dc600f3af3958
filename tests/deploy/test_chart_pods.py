"""Values of pods (labels, volumes, containers, accounts, schedulers, users) and of Services."""

from __future__ import annotations

from typing import Any

import pytest
from helm_python.errors import HelmError

from tests.deploy.chart_network_policies import monitors_of_the_stages_reach_the_gateway
from tests.deploy.chart_parts import GATEWAY, STAGE, pod
from tests.deploy.chart_rendering import Rendered, containers, render

MOUNT = {"name": "extra", "mountPath": "/extra"}
VOLUME = {"name": "extra", "secret": {"secretName": "extra"}}
BOX = {"name": "helper", "image": "registry.example/helper:1", "command": ["sleep", "infinity"]}
MORE: dict[str, Any] = {
    "podLabels": {"team": "speech", "example.com/cost-centre": "7"},
    "podAnnotations": {"example.com/note": "kept"},
    "extraVolumes": [VOLUME],
    "extraVolumeMounts": [MOUNT],
    "initContainers": [BOX],
    "sidecars": [BOX],
    "schedulerName": "gpu-scheduler",
    "priorityClassName": "high",
    "serviceAccount": {"create": True, "name": "speaker", "annotations": {"example.com/role": "x"}},
}
PLACES = {"gateway": {"gateway": MORE}, "stages": {"stageDefaults": MORE}}


def _template(rendered: Rendered, name: str) -> dict[str, Any]:
    found: dict[str, Any] = rendered.of_kind("Deployment")[name]["spec"]["template"]
    return found


@pytest.mark.parametrize(("place", "name", "main"), [
    ("gateway", GATEWAY, "gateway"),
    ("stages", STAGE, "stage"),
])  # fmt: skip
def test_a_pod_has_what_its_values_add(place: str, name: str, main: str) -> None:
    rendered = render(PLACES[place])
    template = _template(rendered, name)
    spec = template["spec"]
    assert template["metadata"]["labels"].items() >= MORE["podLabels"].items()
    assert template["metadata"]["annotations"].items() >= MORE["podAnnotations"].items()
    assert VOLUME in spec["volumes"]
    assert BOX in spec["initContainers"]
    assert [each["name"] for each in spec["containers"]] == [main, "helper"]
    assert MOUNT in spec["containers"][0]["volumeMounts"]
    assert spec["schedulerName"] == "gpu-scheduler"
    assert spec["priorityClassName"] == "high"
    assert spec["serviceAccountName"] == "speaker"
    account = rendered.of_kind("ServiceAccount")["speaker"]
    assert account["metadata"]["annotations"] == {"example.com/role": "x"}
    selector = rendered.of_kind("Deployment")[name]["spec"]["selector"]["matchLabels"]
    assert not selector.keys() & MORE["podLabels"].keys()
    other = _template(rendered, STAGE if place == "gateway" else GATEWAY)
    assert "team" not in other["metadata"]["labels"]
    assert "schedulerName" not in other["spec"]


def test_init_containers_run_before_the_download() -> None:
    model = {"source": "claim", "pipeline": "qwen3_omni",
             "download": {"enabled": True, "command": ["fetch"]}}  # fmt: skip
    spec = pod(render({"model": model, "stageDefaults": {"initContainers": [BOX]}}))
    assert [each["name"] for each in spec["initContainers"]] == ["helper", "download"]


@pytest.mark.parametrize("place", ["gateway", "stageDefaults"])
def test_a_label_that_the_chart_selects_by_is_refused(place: str) -> None:
    with pytest.raises(HelmError, match=r"podLabels: app.kubernetes.io/component is set by"):
        render({place: {"podLabels": {"app.kubernetes.io/component": "x"}}})


def test_the_role_is_bound_to_the_account_that_the_gateway_has() -> None:
    for account, exists in (({"create": False, "name": "mine"}, False), ({"name": "made"}, True)):
        rendered = render({"gateway": {"serviceAccount": account}})
        assert pod(rendered, GATEWAY)["serviceAccountName"] == account["name"]
        (binding,) = rendered.of_kind("RoleBinding").values()
        assert binding["subjects"][0]["name"] == account["name"]
        assert (account["name"] in rendered.of_kind("ServiceAccount")) is exists
    with pytest.raises(HelmError, match=r"gateway.serviceAccount.name: is empty"):
        render({"gateway": {"serviceAccount": {"create": False}}})


def test_stages_have_no_account_unless_one_is_named() -> None:
    rendered = render()
    assert "serviceAccountName" not in pod(rendered)
    assert list(rendered.of_kind("ServiceAccount")) == [GATEWAY]
    named = render({"stages": {"thinker": {"serviceAccount": {"name": "weights"}}}})
    assert pod(named)["serviceAccountName"] == "weights"
    assert list(named.of_kind("ServiceAccount")) == [GATEWAY]


def test_services_have_both_families_where_the_cluster_has_them() -> None:
    for values, policy, families in (
        ({}, "PreferDualStack", None),
        ({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}, "SingleStack", ["IPv6"]),
        ({"ipFamilyPolicy": ""}, None, None),
    ):
        services = render(values | {"gateway": {"metricsOwnPort": True}}).of_kind("Service")
        assert len(services) == 5
        for service in services.values():
            assert service["spec"].get("ipFamilyPolicy") == policy
            assert service["spec"].get("ipFamilies") == families


def test_everything_listens_on_both_families() -> None:
    deployment = render({"gateway": {"metricsOwnPort": True}}).deployment_file()
    gateway = deployment.gateway
    listens = [gateway.http_listen, gateway.grpc_listen, gateway.metrics_listen]
    for stage in deployment.stages.values():
        listens += [stage.listen, stage.metrics_listen, stage.health_listen]
    assert len(listens) == 12
    assert all(each.startswith("[::]:") for each in listens)


def test_metrics_of_the_gateway_have_a_port_of_their_own_when_they_are_to() -> None:
    values = {
        "gateway": {"metricsOwnPort": True},
        "metrics": {"podMonitor": {"enabled": True}},
        "networkPolicy": {"enabled": True, "monitors": [{"podSelector": {}}]},
    }
    rendered = render(values)
    assert rendered.deployment_file().gateway.metrics_listen == "[::]:50052"
    (box,) = pod(rendered, GATEWAY)["containers"]
    assert {"name": "metrics", "containerPort": 50052} in box["ports"]
    service = rendered.of_kind("Service")[f"{GATEWAY}-metrics"]
    assert [each["targetPort"] for each in service["spec"]["ports"]] == [50052]
    assert "metrics" not in [
        p["name"] for p in rendered.of_kind("Service")[GATEWAY]["spec"]["ports"]
    ]
    assert rendered.annotations(GATEWAY)["prometheus.io/port"] == "50052"
    (monitor,) = rendered.of_kind("PodMonitor").values()
    assert "http" not in [each["port"] for each in monitor["spec"]["podMetricsEndpoints"]]
    assert not list(monitors_of_the_stages_reach_the_gateway(rendered))
    rules = rendered.of_kind("NetworkPolicy")[GATEWAY]["spec"]["ingress"]
    (opened,) = (
        each for each in rules if {"protocol": "TCP", "port": "metrics"} in each.get("ports", ())
    )
    opened["ports"][0]["port"] = "http"
    assert list(monitors_of_the_stages_reach_the_gateway(rendered))


def test_the_cluster_chooses_users_when_it_is_to() -> None:
    model = {"source": "claim", "pipeline": "qwen3_omni",
             "download": {"enabled": True, "command": ["fetch"]}}  # fmt: skip
    for values in ({"randomUser": True}, {"randomUser": True, "model": model}):
        for spec in render(values).pods().values():
            security = spec["securityContext"]
            assert not {"runAsUser", "runAsGroup", "fsGroup"} & security.keys()
            assert security["runAsNonRoot"] is True
            for each in containers(spec):
                assert "runAsUser" not in each["securityContext"]
    fixed = pod(render({"model": model}))["securityContext"]
    assert fixed["runAsUser"] == fixed["runAsGroup"] == fixed["fsGroup"] == 10001


def test_a_container_writes_to_volumes_alone_and_names_its_user() -> None:
    for spec in render({"randomUser": True}).pods().values():
        for each in spec["containers"]:
            env = {variable["name"]: variable.get("value") for variable in each["env"]}
            assert env["USER"]
            assert env["HOME"] in [mount["mountPath"] for mount in each["volumeMounts"]]
