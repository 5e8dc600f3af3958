"""Values that the chart refuses, and those just within its bounds."""

from __future__ import annotations

from typing import Any

import helm_python
import pytest

from antiphon.pipelines.registry import own_pipelines, pipeline_of
from antiphon_tools.launcher.plan import EMBEDDED_MODEL
from tests.deploy.chart_rendering import ROOT, Values, render

GPU: Values = {"accelerator": {"type": "nvidia"}}
PIPELINE = pipeline_of(ROOT / EMBEDDED_MODEL).name
CLAIMED = {"source": "existingClaim", "existingClaim": "weights"}


def pod_of(name: str = "speech", **said: Any) -> Values:
    return {"colocated": {name: {"stages": ["talker", "code2wav"]} | said}}


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"gatewayy": {}}, "gatewayy"),
        ({"gateway": {"replica": 2}}, "replica"),
        ({"stageDefaults": {"gpus": 1}}, "gpus"),
        ({"stages": {"thinker": {"resorces": {}}}}, "resorces"),
        ({"stages": {"reader": {"resorces": {}}}, "model": {"pipeline": "duet"}}, "resorces"),
        ({"stages": {"thinker": {"config": {"slot": 4}}}}, "slot"),
        ({"stages": {"thinker": {"config": {"listen": "0.0.0.0:1"}}}}, "listen"),
        ({"stages": {"thinker": {"config": {"metrics_listen": "0.0.0.0:1"}}}}, "metrics_listen"),
        ({"metrics": {"serviceMonitor": {}}}, "serviceMonitor"),
        ({"gateway": {"config": {"http_listen": "0.0.0.0:1"}}}, "http_listen"),
        ({"stageDefaults": {"probes": {"liveness": {"grpc": {"port": 1}}}}}, "grpc"),
        ({"model": {"huggingFaceToken": "x"}}, "huggingFaceToken"),
        ({"model": {"download": {"token": "x"}}}, "token"),
    ],
)
def test_values_are_refused_when_a_key_is_unknown(values: Values, place: str) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=f"'{place}' not allowed"):
        render(values)


@pytest.mark.parametrize(
    "values",
    [
        {"stageDefaults": {"replicas": -1}},
        {"discovery": "dns"},
        {"stageDefaults": {"autoscaling": {"minReplicas": 0}}},
        {"stageDefaults": {"autoscaling": {"target": 70}}},
        {"networkPolicy": {"scalers": []}},
        {"stageDefaults": {"config": {"slots": 0}}},
        {"stageDefaults": {"config": {"dtype": "int4"}}},
        {"stageDefaults": {"accelerator": {"type": "tpu"}}},
        {"stageDefaults": {"sharedMemory": {"size": "64MB"}}},
        {"stageDefaults": {"resources": {"requests": {"cpu": "abc"}}}},
        {"stageDefaults": {"resources": {"requests": {"cpu": "0.5Gi"}}}},
        {"stageDefaults": {"resources": {"limits": {"nvidia.com/gpu": "one"}}}},
        {"stageDefaults": {"tmp": {"size": "plenty"}}},
        {"gateway": {"podDisruptionBudget": {"maxUnavailable": 0}}},
        {"gateway": {"image": {"digest": "latest"}}},
        {"images": {"pullPolicy": "Sometimes"}},
        {"delivery": {"codes": "later"}},
        {"model": {"source": "download"}},
        {"model": {"volume": {"accessModes": ["ReadOnlyMany"]}}},
        {"model": {"download": {"image": "two words"}}},
        {"model": {"source": "existingClaim", "directory": "../secrets"}},
        {"stages": {"Thinker": {}}},
        {"stages": {"thinker": 3}},
        {"stages": {"thinker": {"config": {"slots": "four"}}}},
        {"stages": {"thinker.x": {}}},
        {"gateway": {"service": {"type": "ExternalName"}}},
        {"colocated": {"speech": {"stages": ["talker"]}}},
        {"colocated": {"speech": {"stages": ["talker", "talker"]}}},
        {"colocated": {"speech": {"accelerators": "shared"}}},
        {"colocated": {"Speech": {"stages": ["talker", "code2wav"]}}},
        {"colocated": {"speech": {"stages": ["talker", "code2wav"], "config": {}}}},
        {"commonLabels": {"app.kubernetes.io/name": "other"}},
        {"gateway": {"service": {"loadBalancerSourceRanges": ["10.0.0.1"]}}},
        {"stageDefaults": {"envFrom": [{"secret": "keys"}]}},
        {"metrics": {"annotations": "yes"}},
        {"metrics": {"podMonitor": {"interval": "half a minute"}}},
    ],
)
def test_values_are_refused_when_out_of_range(values: Values) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        render(values)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model": {"source": "existingClaim", "pipeline": PIPELINE}}, "set model.existingClaim"),
        ({"model": {"existingClaim": "weights"}}, "set model.source to existingClaim"),
        ({"model": {"source": "hostPath"}}, "set model.hostPath"),
        ({"model": {"hostPath": "/weights"}}, "set model.source to hostPath"),
        ({"model": CLAIMED}, "model.pipeline: is empty; name the model family of the checkpoint"),
        ({"model": CLAIMED}, f"(this chart knows {', '.join(sorted(own_pipelines()))})"),
        ({"model": CLAIMED, "stages": {"reader": {}}}, "model.pipeline: is empty"),
        ({"model": {"source": "hostPath", "hostPath": "/weights"}}, "model.pipeline: is empty"),
        ({"stages": {"gateway": {}}}, "no stage can be called gateway"),
        ({"model": {"pipeline": "duet"}, "stages": {"scaler": {}}}, "be called scaler, other"),
        (
            {"stages": {"tolker": {}}},
            "stages.tolker: the pipeline qwen3_omni has no such stage; it has thinker, talker, c",
        ),
        ({"stages": {"tolker": None}}, "the pipeline qwen3_omni has no such stage"),
        (
            {"model": {"pipeline": "duet"}},
            f"this chart does not know duet, only {', '.join(sorted(own_pipelines()))};",
        ),
        ({"model": {"pipeline": "duet"}, "stages": {"reader": None}}, "list the roles"),
        (
            {"stages": {"thinker": None, "talker": None, "code2wav": None}},
            "at least one of thinker, talker, code2wav must not be null",
        ),
        (
            {"stages": {"talker": {"sharedMemory": {"size": "4Gi"}}}},
            "stages.talker.sharedMemory.size: 4Gi must be less than resources.limits.memory, 4Gi",
        ),
        ({"stageDefaults": {"sharedMemory": {"size": "4295M"}}}, "must be less"),
        ({"stageDefaults": {"sharedMemory": {"size": "4294967296"}}}, "must be less"),
        ({"stageDefaults": {"resources": {"limits": {"memory": None}}}}, "must be set"),
        ({"stages": {"talker": {"config": {"device": "cuda:1"}}}}, "needs accelerator.type"),
        (
            {"stages": {"talker": GPU | {"config": {"device": "cuda:3"}}}},
            "stages.talker.config.device: there is no cuda:3 among the 1 of stages.talker.acc",
        ),
        (
            {"stages": {"talker": GPU | {"config": {"engine_args": {"tensor_parallel_size": 2}}}}},
            "stages.talker.config.engine_args.tensor_parallel_size: 2 is more than the 1 of",
        ),
        (
            {"stageDefaults": {"config": {"link": {"slab_bytes": 100_000_000}}}},
            "config.link.slab_bytes: 100000000 must be a power of two",
        ),
        (
            {"stageDefaults": {"config": {"copies": {"staging_bytes": 65_537}}}},
            "config.copies.staging_bytes: 65537",
        ),
        (
            {"stages": {"talker": {"resources": {"requests": {"memory": "5Gi"}}}}},
            "stages.talker.resources.requests.memory: 5Gi must not be more than resources.limits.m",
        ),
        (
            {"gateway": {"resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": 1}}}},
            "gateway.resources.requests.cpu: 1500m must not be more than resources.limits.cpu, 1",
        ),
        (
            {"images": {"registry": ""}},
            "images.registry: is empty, and no image antiphon-gateway is published; build the ima",
        ),
        (
            {"images": {"pullPolicy": "Never"}, "gateway": {"image": {"pullPolicy": "Always"}}},
            "no image antiphon-gateway is published",
        ),
        ({"stageDefaults": {"accelerator": {"type": "amd"}}}, "there is no Dockerfile for amd"),
        ({"stages": {"talker": None}}, "stages.talker: is null; set gateway.readyOutput"),
        ({"stages": {"talker": {"replicas": 0}}}, "stages.talker.replicas: is 0; set gateway.rea"),
        (
            {"discovery": "static", "stages": {"talker": {"replicas": 2}}},
            "stages.talker.replicas: more than one needs discovery: kubernetes",
        ),
        (
            {"discovery": "static", "stages": {"talker": {"autoscaling": {"enabled": True}}}},
            "stages.talker.replicas: more than one needs discovery: kubernetes",
        ),
        (
            {"stages": {"talker": {"terminationGracePeriodSeconds": 619}}},
            "stages.talker.terminationGracePeriodSeconds: 619 is less than the 620 s of preStop",
        ),
        ({"gateway": {"terminationGracePeriodSeconds": 60}}, "gateway.terminationGracePeriodSec"),
        (
            {"gateway": {"autoscaling": {"minReplicas": 20}}},
            "gateway.autoscaling.minReplicas: 20 is more than maxReplicas, 10",
        ),
        (
            pod_of(stages=["talker", "reader"]),
            "no stage reader is installed; there are code2wav, ta",
        ),
        (
            pod_of("talker", stages=["talker", "code2wav"]),
            "colocated.talker: is the name of a stage",
        ),
        (
            pod_of("gateway", stages=["talker", "code2wav"]),
            "colocated.gateway: is the name of a st",
        ),
        (
            {
                "colocated": {
                    "a": {"stages": ["talker", "code2wav"]},
                    "b": {"stages": ["thinker", "talker"]},
                }
            },
            "colocated.b.stages: talker is in colocated.a already",
        ),
        (
            pod_of() | {"stages": {"talker": {"replicas": 2}}},
            "stages.talker.replicas: the stage shares a pod; set colocated.speech.replicas",
        ),
        (
            pod_of(accelerators="shared") | {"stages": {"talker": {"resources": {}}}},
            "stages.talker.resources: the stage shares a pod; set colocated.speech.resources",
        ),
        (
            pod_of(accelerators="claimed") | {"stages": {"talker": GPU}},
            "stages.talker.accelerator: the stage shares a pod; set colocated.speech.accelerator",
        ),
        (
            pod_of(**GPU),
            "colocated.speech.accelerator: each of its stages has a container; set stages.talker.a",
        ),
        (
            pod_of(accelerators="claimed", resources={}),
            "colocated.speech.resources: each of its stages has a container; set stages.talker.res",
        ),
        (pod_of(accelerators="claimed"), "colocated.speech.accelerator.type: is cpu, and nothing"),
        (
            pod_of(accelerators="shared")
            | {"model": CLAIMED | {"pipeline": PIPELINE, "subPathPerStage": True}},
            "colocated.speech.accelerators: with model.subPathPerStage, shared is impossible",
        ),
        (
            pod_of(accelerators="shared", **GPU)
            | {"stages": {"talker": {"config": {"device": "cuda:1"}}}},
            "stages.talker.config.device: there is no cuda:1 among the 1 of colocated.speech.accel",
        ),
        (
            pod_of(terminationGracePeriodSeconds=719)
            | {"stages": {"code2wav": {"config": {"drain_s": 700}}}},
            "colocated.speech.terminationGracePeriodSeconds: 719 is less than the 720 s of preStop",
        ),
        (
            pod_of(sharedMemory={"size": "3Gi"})
            | {"stages": {"code2wav": {"resources": {"limits": {"memory": "2Gi"}}}}},
            "colocated.speech.sharedMemory.size: 3Gi must be less than stages.code2wav.resources.l",
        ),
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs: is empty"),
        ({"grpcRoute": {"enabled": True}}, "grpcRoute.parentRefs: is empty"),
        (
            {"gateway": {"service": {"externalTrafficPolicy": "Local"}}},
            "gateway.service.externalTrafficPolicy: has no effect on a ClusterIP",
        ),
        (
            {"gateway": {"service": {"type": "NodePort", "loadBalancerClass": "a/b"}}},
            "loadBalancerSourceRanges have no effect on a NodePort",
        ),
        (
            {"model": {"download": {"enabled": True, "command": ["fetch"]}}},
            "a download needs model.source claim, existingClaim or emptyDir, not embedded",
        ),
        (
            {"model": {"source": "claim", "download": {"enabled": True}}},
            "model.download.command: is empty",
        ),
        ({"model": {"source": "emptyDir"}}, "model.source is emptyDir: set model.download.enabled"),
        ({"model": {"source": "claim"}}, "model.pipeline: is empty"),
        ({"model": {"subPathPerStage": True}}, "model.subPathPerStage: needs model.source claim"),
        (
            {
                "networkPolicy": {"enabled": True},
                "stageDefaults": {"config": {"trace_endpoint": "http://collector"}},
            },
            "stages.code2wav.config.trace_endpoint: http://collector names no port",
        ),
        ({"fullnameOverride": "Speech"}, "cannot begin the name"),
    ],
)
def test_render_fails_with_the_reason_when_values_contradict(values: Values, reason: str) -> None:
    with pytest.raises(helm_python.HelmRenderError) as failure:
        render(values)
    assert reason in str(failure.value)


@pytest.mark.parametrize("slab_bytes", [1 << 17, 1 << 28, 1 << 40])
def test_slab_is_accepted_when_it_is_a_power_of_two(slab_bytes: int) -> None:
    deployment = render(
        {"stageDefaults": {"config": {"link": {"slab_bytes": slab_bytes}}}}
    ).deployment_file()
    assert deployment.stage("talker").link.slab_bytes == slab_bytes


@pytest.mark.parametrize(
    ("asked", "limit"), [("1", "1000m"), (2, "2"), ("0.1", "100m"), ("1500m", "1.5")]
)
def test_requests_are_accepted_when_they_are_the_limits(asked: object, limit: str) -> None:
    resources = {"requests": {"cpu": asked}, "limits": {"cpu": limit}}
    assert render({"gateway": {"resources": resources}}).objects


@pytest.mark.parametrize("size", ["3.9Gi", "4294M", "4194303Ki", "4294967295"])
def test_shared_memory_is_accepted_when_just_below_the_limit(size: str) -> None:
    assert render({"stageDefaults": {"sharedMemory": {"size": size}}}).objects


def test_release_is_refused_when_its_name_cannot_begin_a_service() -> None:
    with pytest.raises(helm_python.HelmRenderError, match="fullnameOverride"):
        render(release="1demo")
    assert render({"fullnameOverride": "demo"}, release="1demo").of_kind("Service")["demo-gateway"]
