"""Every preset keeps every policy, and every policy finds the faults that are planted here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.deploy import (
    chart_colocation,
    chart_end_policies,
    chart_network_policies,
    chart_policies,
    chart_tls_policies,
    chart_weight_policies,
)
from tests.deploy.chart_parts import (
    GATEWAY,
    OTHER,
    SCALER,
    STAGE,
    box,
    budget,
    change_file,
    filling,
    labels,
    mount,
    one,
    pod,
    rule,
    scaled,
    service,
    spec,
    volume,
)
from tests.deploy.chart_policies import POLICIES, restricted_faults
from tests.deploy.chart_rendering import PRESETS, Rendered, preset, render

FULL = "everything"
Mutation = Callable[[Rendered], Any]


@pytest.mark.parametrize("name", PRESETS)
def test_preset_keeps_every_policy(name: str) -> None:
    rendered = render(preset(name))
    faults = {policy: list(check(rendered)) for policy, check in POLICIES.items()}
    assert not {policy: found for policy, found in faults.items() if found}


GPU = "nvidia.com/gpu"
PLANTED: list[tuple[str, Mutation]] = [
    ("pods_are_restricted", lambda r: pod(r).update(hostIPC=True)),
    ("pods_are_restricted", lambda r: pod(r)["securityContext"].pop("runAsNonRoot")),
    ("pods_are_restricted", lambda r: pod(r)["securityContext"].pop("seccompProfile")),
    ("pods_are_restricted", lambda r: box(r)["securityContext"]["capabilities"].pop("drop")),
    ("pods_are_restricted", lambda r: box(r)["securityContext"].pop("allowPrivilegeEscalation")),
    ("pods_are_restricted", lambda r: box(r)["securityContext"].update(privileged=True)),
    ("pods_are_restricted", lambda r: box(r)["ports"][0].update(hostPort=50051)),
    (
        "pods_are_restricted",
        lambda r: pod(r)["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
    ),
    ("only_gateways_have_a_token", lambda r: pod(r).pop("automountServiceAccountToken")),
    ("only_gateways_have_a_token", lambda r: pod(r).update(enableServiceLinks=True)),
    ("only_gateways_have_a_token", lambda r: pod(r).update(automountServiceAccountToken=True)),
    ("only_gateways_have_a_token", lambda r: pod(r, GATEWAY).pop("serviceAccountName")),
    ("roles_read_endpoint_slices_alone", lambda r: rule(r).update(verbs=["*"])),
    ("roles_read_endpoint_slices_alone", lambda r: rule(r)["resources"].append("pods")),
    ("roles_read_endpoint_slices_alone", lambda r: one(r, "Role").update(kind="ClusterRole")),
    (
        "roles_read_endpoint_slices_alone",
        lambda r: one(r, "ServiceAccount").update(kind="ConfigMap"),
    ),
    (
        "stages_answer_probes_at_their_health_port",
        lambda r: box(r)["livenessProbe"]["grpc"].update(service="ready"),
    ),
    (
        "stages_answer_probes_at_their_health_port",
        lambda r: box(r)["readinessProbe"]["grpc"].update(port=50051),
    ),
    ("pods_have_time_to_end", lambda r: pod(r).update(terminationGracePeriodSeconds=60)),
    ("pods_have_time_to_end", lambda r: pod(r, GATEWAY).pop("terminationGracePeriodSeconds")),
    ("pods_have_time_to_end", lambda r: box(r).pop("lifecycle")),
    ("scaled_workloads_have_one_owner", lambda r: spec(r).update(replicas=1)),
    ("scaled_workloads_have_one_owner", lambda r: spec(r, GATEWAY).update(replicas=1)),
    ("scaled_workloads_have_one_owner", lambda r: scaled(r).update(minReplicaCount=0)),
    ("scaled_workloads_have_one_owner", lambda r: scaled(r).update(maxReplicaCount=0)),
    (
        "scaled_workloads_have_one_owner",
        lambda r: scaled(r)["triggers"][0]["metadata"].update(scalerAddress="nobody:1"),
    ),
    (
        "scaled_workloads_have_one_owner",
        lambda r: scaled(r)["triggers"][0]["metadata"].update(stage="reader"),
    ),
    (
        "networks_and_routes_lead_to_pods",
        lambda r: r.of_kind("NetworkPolicy")[STAGE].update(kind="ConfigMap"),
    ),
    (
        "networks_and_routes_lead_to_pods",
        lambda r: r.of_kind("NetworkPolicy")[STAGE]["spec"].update(ingress=[]),
    ),
    (
        "networks_and_routes_lead_to_pods",
        lambda r: r.of_kind("NetworkPolicy")[STAGE]["spec"].update(podSelector={"matchLabels": {}}),
    ),
    (
        "networks_and_routes_lead_to_pods",
        lambda r: service(r, GATEWAY)["ports"][0].update(name="x"),
    ),
    ("networks_and_routes_lead_to_pods", lambda r: service(r, GATEWAY)["ports"][0].update(port=1)),
    (
        "stages_reach_their_collector",
        lambda r: r.of_kind("NetworkPolicy")[STAGE]["spec"]["egress"].pop(),
    ),
    (
        "monitors_of_the_stages_reach_the_gateway",
        lambda r: r.of_kind("NetworkPolicy")[GATEWAY]["spec"]["ingress"].pop(2),
    ),
    ("root_is_read_only", lambda r: box(r)["securityContext"].pop("readOnlyRootFilesystem")),
    ("root_is_read_only", lambda r: mount(r, "tmp").update(mountPath="/temporary")),
    ("root_is_read_only", lambda r: box(r).update(env=[])),
    ("resources_are_complete", lambda r: box(r)["resources"]["requests"].pop("cpu")),
    ("resources_are_complete", lambda r: box(r)["resources"]["limits"].pop("memory")),
    ("resources_are_complete", lambda r: box(r)["resources"]["requests"].update(memory="1Ti")),
    ("resources_are_complete", lambda r: box(r)["resources"]["requests"].pop(GPU)),
    ("resources_are_complete", lambda r: box(r)["resources"]["limits"].update({GPU: 2})),
    ("probes_are_complete", lambda r: box(r).pop("startupProbe")),
    ("probes_are_complete", lambda r: box(r)["readinessProbe"]["grpc"].update(port="grpc")),
    ("probes_are_complete", lambda r: box(r)["livenessProbe"]["grpc"].update(port=1)),
    ("probes_are_complete", lambda r: box(r)["livenessProbe"].update(timeoutSeconds=1)),
    (
        "selectors_match_their_own_pods",
        lambda r: service(r)["selector"].pop("app.kubernetes.io/component"),
    ),
    ("selectors_match_their_own_pods", lambda r: labels(r).clear()),
    (
        "selectors_match_their_own_pods",
        lambda r: budget(r)["selector"].update(matchLabels=labels(r, OTHER)),
    ),
    ("pods_carry_no_versions", lambda r: labels(r).update({"helm.sh/chart": "antiphon-1"})),
    (
        "pods_carry_no_versions",
        lambda r: spec(r)["selector"]["matchLabels"].update({"app.kubernetes.io/version": "1"}),
    ),
    ("service_ports_are_container_ports", lambda r: service(r)["ports"][0].update(targetPort=1)),
    ("service_ports_are_container_ports", lambda r: service(r)["ports"][0].pop("appProtocol")),
    (
        "service_ports_are_container_ports",
        lambda r: service(r)["ports"][0].update(name=service(r)["ports"][1]["name"]),
    ),
    ("stage_services_are_headless", lambda r: service(r).pop("clusterIP")),
    ("stage_services_are_headless", lambda r: service(r).pop("publishNotReadyAddresses")),
    ("stage_services_are_headless", lambda r: service(r, GATEWAY).update(clusterIP="None")),
    (
        "stage_services_are_headless",
        lambda r: service(r, SCALER).pop("publishNotReadyAddresses"),
    ),
    (
        "stage_services_are_headless",
        lambda r: service(r, GATEWAY).update(publishNotReadyAddresses=True),
    ),
    ("deployments_roll_out_in_their_time", lambda r: spec(r).pop("progressDeadlineSeconds")),
    (
        "deployments_roll_out_in_their_time",
        lambda r: spec(r)["strategy"]["rollingUpdate"].update(maxSurge=1),
    ),
    ("checkpoints_are_read_only", lambda r: mount(r, "model").pop("readOnly")),
    ("downloads_go_where_the_stage_reads", lambda r: mount(r, "model").pop("subPath")),
    ("downloads_go_where_the_stage_reads", lambda r: filling(r)["volumeMounts"].clear()),
    ("downloads_go_where_the_stage_reads", lambda r: filling(r)["env"].clear()),
    (
        "downloads_go_where_the_stage_reads",
        lambda r: filling(r)["volumeMounts"][0].update(readOnly=True),
    ),
    ("downloads_go_where_the_stage_reads", lambda r: pod(r)["securityContext"].pop("fsGroup")),
    ("rollouts_wait_for_downloads", lambda r: spec(r).update(progressDeadlineSeconds=3000)),
    (
        "claims_exist_and_are_kept",
        lambda r: one(r, "PersistentVolumeClaim")["metadata"].pop("annotations"),
    ),
    (
        "claims_exist_and_are_kept",
        lambda r: one(r, "PersistentVolumeClaim")["metadata"].update(name="other"),
    ),
    ("empty_volumes_are_bounded", lambda r: volume(r, "tmp")["emptyDir"].clear()),
    (
        "empty_volumes_are_bounded",
        lambda r: volume(r, "shared-memory")["emptyDir"].update(sizeLimit="1Ti"),
    ),
    ("empty_volumes_are_bounded", lambda r: volume(r, "shared-memory")["emptyDir"].pop("medium")),
    ("volumes_are_mounted_and_exist", lambda r: mount(r, "tmp").update(name="temporary")),
    ("volumes_are_mounted_and_exist", lambda r: box(r)["volumeMounts"].pop()),
    (
        "volumes_are_mounted_and_exist",
        lambda r: volume(r, "config")["configMap"].update(name="another"),
    ),
    ("names_are_labels", lambda r: r.objects[0]["metadata"].update(name="Demo.1")),
    ("names_are_labels", lambda r: r.objects[0]["metadata"]["labels"].update(x="a b")),
    (
        "secrets_are_referred_to",
        lambda r: box(r)["env"].append({"name": "HF_TOKEN", "value": "hf_x"}),
    ),
    ("secrets_are_referred_to", lambda r: r.objects[0].update(kind="Secret")),
    ("disruptions_are_bounded", lambda r: budget(r).update(maxUnavailable=0)),
    ("disruptions_are_bounded", lambda r: budget(r).pop("unhealthyPodEvictionPolicy")),
    (
        "disruptions_are_bounded",
        lambda r: r.of_kind("PodDisruptionBudget")[STAGE].update(kind="ConfigMap"),
    ),
    ("images_are_named_in_full", lambda r: box(r).update(image="registry.example/stage:latest")),
    ("images_are_named_in_full", lambda r: box(r).update(image="registry.example:5000/stage")),
    ("images_are_named_in_full", lambda r: box(r).update(image="antiphon-stage:1")),
    ("pods_are_spread", lambda r: pod(r).pop("topologySpreadConstraints")),
    (
        "pods_are_spread",
        lambda r: pod(r)["topologySpreadConstraints"][0]["labelSelector"].update(
            matchLabels=labels(r, OTHER)
        ),
    ),
    (
        "services_have_their_own_certificates",
        lambda r: mount(r, "mutual-tls-thinker").update(mountPath="/certificates"),
    ),
    (
        "services_have_their_own_certificates",
        lambda r: mount(r, "mutual-tls-thinker").update(subPath="tls.crt"),
    ),
    (
        "services_have_their_own_certificates",
        lambda r: mount(r, "mutual-tls-thinker").update(readOnly=False),
    ),
    (
        "services_have_their_own_certificates",
        lambda r: volume(r, "mutual-tls-thinker")["secret"].update(secretName="speech-gateway-tls"),
    ),
    (
        "services_have_their_own_certificates",
        lambda r: change_file(r, "{role}/ca.crt", "{role}/authority.pem"),
    ),
    (
        "certificates_are_those_that_services_want",
        lambda r: r.of_kind("Certificate")[STAGE]["spec"].update(dnsNames=["talker.antiphon"]),
    ),
    (
        "certificates_are_those_that_services_want",
        lambda r: r.of_kind("Certificate")[STAGE]["spec"].update(usages=["server auth"]),
    ),
    (
        "certificates_are_those_that_services_want",
        lambda r: r.of_kind("Certificate")[GATEWAY]["spec"].update(secretName="speech-talker-tls"),
    ),
]


def missed(name: str, planted: list[tuple[str, Mutation]]) -> list[str]:
    """The faults, planted in the preset one at a time, that their policy does not find."""
    found = []
    for at, (policy, plant) in enumerate(planted):
        rendered = render(preset(name))
        plant(rendered)
        if not list(POLICIES[policy](rendered)):
            found.append(f"{policy}-{at}")
    return found


def test_policies_find_the_faults_that_are_planted() -> None:
    assert not missed(FULL, PLANTED)


SPEECH = "demo-antiphon-speech"


def containers_of(rendered: Rendered, name: str = SPEECH) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod(rendered, name)["containers"]
    return found


IN_ONE_POD: list[tuple[str, Mutation]] = [
    ("every_stage_runs_once_and_its_service_leads_there", lambda r: containers_of(r).pop()),
    (
        "every_stage_runs_once_and_its_service_leads_there",
        lambda r: service(r)["selector"].update(labels(r, GATEWAY)),
    ),
    (
        "every_stage_runs_once_and_its_service_leads_there",
        lambda r: service(r).update(ports=service(r, OTHER)["ports"]),
    ),
    (
        "every_stage_runs_once_and_its_service_leads_there",
        lambda r: containers_of(r)[0]["ports"].pop(0),
    ),
    (
        "every_stage_runs_once_and_its_service_leads_there",
        lambda r: change_file(r, "POD_IP}:50061", "POD_IP}:1"),
    ),
    (
        "ports_of_a_pod_are_told_apart",
        lambda r: containers_of(r)[0]["ports"][0].update(name="grpc-1"),
    ),
    (
        "ports_of_a_pod_are_told_apart",
        lambda r: containers_of(r)[0]["ports"][0].update(containerPort=50061),
    ),
    (
        "stages_of_a_pod_share_their_memory",
        lambda r: next(
            m for m in containers_of(r)[1]["volumeMounts"] if m["mountPath"] == "/dev/shm"
        ).update(name="another"),
    ),
    (
        "stages_answer_probes_at_their_health_port",
        lambda r: containers_of(r)[1]["readinessProbe"]["grpc"].update(port=50053),
    ),
    ("pods_have_time_to_end", lambda r: containers_of(r)[2].pop("lifecycle")),
    ("pods_have_time_to_end", lambda r: change_file(r, "drain_s: 600", "drain_s: 601")),
    (
        "claims_are_used_and_made",
        lambda r: pod(r, SPEECH).update(
            resourceClaims=[{"name": "x", "resourceClaimTemplateName": "y"}]
        ),
    ),
]


def test_policies_find_the_faults_that_are_planted_in_a_pod_of_several_stages() -> None:
    assert not missed("colocated", IN_ONE_POD)


LANGUAGE = "demo-antiphon-language"


WRONG_CLAIMS: list[tuple[str, Mutation]] = [
    ("claims_are_used_and_made", plant)
    for plant in (
        lambda r: containers_of(r, LANGUAGE)[0]["resources"].pop("claims"),
        lambda r: containers_of(r, LANGUAGE)[0]["resources"]["limits"].update({GPU: 1}),
        lambda r: pod(r, LANGUAGE).pop("resourceClaims"),
        lambda r: one(r, "ResourceClaimTemplate")["metadata"].update(name="other"),
    )
]


def test_policy_finds_what_is_wrong_with_a_claim() -> None:
    assert not missed("dra", WRONG_CLAIMS)


def test_every_policy_is_shown_to_fail() -> None:
    modules = {chart_policies, chart_network_policies, chart_weight_policies}
    modules |= {chart_colocation, chart_end_policies, chart_tls_policies}
    assert {each.__module__ for each in POLICIES.values()} == {each.__name__ for each in modules}
    assert {policy for policy, _ in PLANTED + IN_ONE_POD} == set(POLICIES)


def test_restricted_check_reports_hostpath_when_it_is_asked_for() -> None:
    model = {"source": "hostPath", "hostPath": "/weights", "pipeline": "qwen3_omni"}
    pods = render({"model": model}).pods()
    assert list(restricted_faults(pods[STAGE])) == ["volume hostPath"]
