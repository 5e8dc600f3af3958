"""What values do to the chart."""

from __future__ import annotations

import re
import shutil
from operator import attrgetter
from pathlib import Path
from typing import Any

import helm_python
import pytest

from antiphon.pipelines.graph import Pipeline
from antiphon.pipelines.registry import own_pipelines, pipeline_named, pipeline_of
from antiphon_tools.launcher.plan import EMBEDDED_MODEL
from tests.deploy.chart_rendering import CHART, PRESETS, REGISTRY, ROOT, Values, preset, render

THINKER, TALKER, CODE2WAV, GATEWAY = (
    f"demo-antiphon-{role}" for role in ("thinker", "talker", "code2wav", "gateway")
)
GPU: Values = {"accelerator": {"type": "nvidia"}}
STAGE_ENV = [{"name": "HF_HUB_OFFLINE", "value": "1"}]
PIPELINE = pipeline_of(ROOT / EMBEDDED_MODEL).name
OMNI3 = "qwen3_omni"
CLAIMED = {"source": "existingClaim", "existingClaim": "weights"}
CLAIM: Values = {"model": CLAIMED | {"pipeline": PIPELINE}}


ELSEWHERE: Values = {
    "model": {"pipeline": "duet"},
    "stages": {"reader": {}, "voice_coder": {"accelerator": {"type": "nvidia"}}},
}


def test_a_pipeline_from_elsewhere_is_installed_when_its_roles_are_listed() -> None:
    rendered = render(ELSEWHERE)
    names = {"reader": "demo-antiphon-reader", "voice_coder": "demo-antiphon-voice-coder"}
    assert set(rendered.of_kind("Deployment")) == {*names.values(), GATEWAY}
    deployment = rendered.deployment_file()
    assert deployment.pipeline == "duet"
    assert set(deployment.stages) == set(names)
    assert [each.device for each in deployment.stages.values()] == ["cpu", "cuda"]
    for role, name in names.items():
        (stage,) = rendered.pods()[name]["containers"]
        assert stage["command"][:4] == ["python", "-m", "antiphon_services", role]
        assert deployment.gateway.discovery.services[role] == name
        assert rendered.of_kind("Service")[name]["spec"]["clusterIP"] == "None"
    assert "the stages reader, voice_coder of the pipeline duet." in rendered.notes


@pytest.mark.parametrize(("name", "pipeline"), own_pipelines().items())
def test_all_stages_of_a_pipeline_of_this_repository_are_installed(
    name: str, pipeline: Pipeline
) -> None:
    rendered = render({"model": {"pipeline": name}})
    deployment = rendered.deployment_file()
    assert deployment.pipeline == name
    assert set(deployment.stages) == set(pipeline.roles)
    assert len(rendered.of_kind("Deployment")) == len(pipeline.roles) + 1


def test_the_pipeline_is_that_of_the_embedded_model_when_none_is_named() -> None:
    assert render().deployment_file().pipeline == PIPELINE


def test_a_stage_is_left_out_when_it_is_null() -> None:
    rendered = render({"stages": {"talker": None}, "gateway": {"readyOutput": "text"}})
    assert TALKER not in rendered.pods()
    assert set(rendered.deployment_file().stages) == {"thinker", "code2wav"}


TEXT_ALONE: Values = {
    "stages": {"talker": None, "code2wav": None},
    "gateway": {"readyOutput": "text"},
}
"""For a checkpoint without a talker, as docs/kubernetes.md has it."""


def overlaid(below: Values, above: Values) -> Values:
    """As Helm overlays one file of values on another."""
    both = below | above
    maps = [
        key
        for key in below.keys() & above.keys()
        if isinstance(below[key], dict) and isinstance(above[key], dict)
    ]
    return both | {key: overlaid(below[key], above[key]) for key in maps}


@pytest.mark.parametrize(
    "name",
    [each for each in PRESETS if preset(each).get("model", {}).get("pipeline", PIPELINE) == OMNI3],
)
def test_release_of_text_alone_has_only_a_thinker_and_a_gateway(name: str) -> None:
    groups = dict.fromkeys(preset(name).get("colocated", {}))
    rendered = render(overlaid(preset(name), TEXT_ALONE | {"colocated": groups}))
    assert set(rendered.of_kind("Deployment")) == {THINKER, GATEWAY}
    assert set(rendered.deployment_file().stages) == {"thinker"}
    # Nothing else refers to them: no Service, policy, certificate, trigger or note.
    assert not re.search("talker|code2wav", f"{rendered.objects}{rendered.notes}")
    (gateway,) = rendered.pods()[GATEWAY]["containers"]
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/health?output=text"


def test_text_alone_is_documented_as_it_renders() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    assert "`stages: {talker: null, code2wav: null}`" in page
    assert "`gateway.readyOutput: text`" in page


def test_group_of_a_stage_that_is_left_out_is_refused_with_the_remedy() -> None:
    values = overlaid(preset("one-h100"), TEXT_ALONE)
    with pytest.raises(helm_python.HelmRenderError, match=r"set colocated\.speech to null"):
        render(values)


def test_a_stages_own_values_win_even_when_they_are_zero() -> None:
    rendered = render(
        {
            "stageDefaults": {"config": {"threads": 4, "slots": 3}},
            "stages": {"thinker": {"replicas": 0, "config": {"threads": 0}}},
            "gateway": {"readyOutput": "audio"},
        }
    )
    deployment = rendered.deployment_file()
    assert (deployment.stage("thinker").threads, deployment.stage("thinker").slots) == (0, 3)
    assert deployment.stage("talker").threads == 4
    assert rendered.of_kind("Deployment")[THINKER]["spec"]["replicas"] == 0


def test_pods_take_placement_environment_and_annotations() -> None:
    placement: dict[str, Any] = {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"podAffinity": {}},
        "runtimeClassName": "nvidia",
        "terminationGracePeriodSeconds": 777,
    }
    rendered = render(
        {
            "imagePullSecrets": [{"name": "registry"}],
            "stages": {"thinker": placement | {"env": STAGE_ENV, "podAnnotations": {"a": "b"}}},
            "gateway": placement,
        }
    )
    for name in (THINKER, GATEWAY):
        pod = rendered.pods()[name]
        assert {key: pod[key] for key in placement} == placement
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert STAGE_ENV[0] in rendered.pods()[THINKER]["containers"][0]["env"]
    assert rendered.annotations(THINKER)["a"] == "b"
    assert "nodeSelector" not in rendered.pods()[TALKER]
    assert "a" not in rendered.annotations(TALKER)


def test_pods_have_time_for_preparing_draining_and_more() -> None:
    rendered = render(
        {"gateway": {"config": {"limits": {"request_timeout_s": 90.5}}, "preStopSeconds": 7}}
    )
    deployment = rendered.deployment_file()
    assert deployment.gateway.drain_s == deployment.stage("thinker").drain_s == 90.5
    grace = {name: each["terminationGracePeriodSeconds"] for name, each in rendered.pods().items()}
    assert (grace[GATEWAY], grace[THINKER]) == (7 + 91 + 10, 10 + 91 + 10)
    own = render({"stageDefaults": {"config": {"drain_s": 0}, "terminationGracePeriodSeconds": 20}})
    assert own.deployment_file().stage("talker").drain_s == 0
    assert own.pods()[TALKER]["terminationGracePeriodSeconds"] == 20


def test_pods_say_where_their_series_are_unless_told_otherwise() -> None:
    ports = {THINKER: "50052", TALKER: "50052", GATEWAY: "8000"}
    rendered = render({"stages": {"talker": {"podAnnotations": {"prometheus.io/scrape": "false"}}}})
    for name, port in ports.items():
        annotations = rendered.annotations(name)
        assert annotations["prometheus.io/scrape"] == ("false" if name == TALKER else "true")
        assert annotations["prometheus.io/port"] == port
        assert annotations["prometheus.io/path"] == "/metrics"
        (container,) = rendered.pods()[name]["containers"]
        assert int(port) in {each["containerPort"] for each in container["ports"]}
    silent = render({"metrics": {"annotations": False}})
    for name in ports:
        assert not [key for key in silent.annotations(name) if key.startswith("prometheus.io/")]


def test_pod_monitor_reaches_every_pod_once_when_it_is_wanted() -> None:
    assert not render().of_kind("PodMonitor")
    wanted = {"enabled": True, "labels": {"release": "prometheus"}, "interval": "30s"}
    rendered = render({"metrics": {"podMonitor": wanted}})
    (monitor,) = rendered.of_kind("PodMonitor").values()
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    selector = monitor["spec"]["selector"]["matchLabels"]
    endpoints = monitor["spec"]["podMetricsEndpoints"]
    assert {(each["path"], each["interval"]) for each in endpoints} == {("/metrics", "30s")}
    names = {each["port"] for each in endpoints}
    for name, deployment in rendered.of_kind("Deployment").items():
        template = deployment["spec"]["template"]
        assert selector.items() <= template["metadata"]["labels"].items()
        (container,) = template["spec"]["containers"]
        assert len([each for each in container["ports"] if each["name"] in names]) == 1, name
    (monitor,) = (
        render({"metrics": {"podMonitor": {"enabled": True}}}).of_kind("PodMonitor").values()
    )
    assert not [each for each in monitor["spec"]["podMetricsEndpoints"] if "interval" in each]


def test_labels_of_all_objects_replace_no_pods_and_give_way_to_an_objects_own() -> None:
    values: Values = {
        "commonLabels": {"release": "speech", "cost-center": "7"},
        "metrics": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    }
    rendered = render(values)
    (monitor,) = rendered.of_kind("PodMonitor").values()
    assert monitor["metadata"]["labels"].items() >= {
        ("release", "prometheus"),
        ("cost-center", "7"),
    }
    for name, deployment in rendered.of_kind("Deployment").items():
        assert deployment["metadata"]["labels"]["release"] == "speech"
        before = render().of_kind("Deployment")[name]["spec"]
        assert deployment["spec"] == before


def _replaced(values: Values) -> set[str]:
    """The Deployments whose pods are replaced by an upgrade from the stock values."""
    before, after = render(), render(values)
    return {
        name.removeprefix("demo-antiphon-")
        for name in before.of_kind("Deployment")
        if before.annotations(name) != after.annotations(name)
    }


@pytest.mark.parametrize(
    ("values", "replaced"),
    [
        ({}, set()),
        ({"gateway": {"config": {"queue": {"max_calls": 3}}}}, {"gateway"}),
        ({"stages": {"talker": {"config": {"slots": 3}}}}, {"gateway", "talker"}),
        ({"delivery": {"codes": "whole"}}, {"gateway", "thinker", "talker", "code2wav"}),
        ({"gateway": {"replicas": 3}}, set()),
    ],
)
def test_upgrade_replaces_the_pods_that_read_what_changed(
    values: Values, replaced: set[str]
) -> None:
    assert _replaced(values) == replaced


@pytest.mark.parametrize(
    ("value", "setting", "volume", "folder"),
    [
        ("keys", "keys_file", "keys", "/etc/antiphon-keys"),
        ("resumeKey", "resume.key_file", "resume-key", "/etc/antiphon-resume"),
    ],
)
def test_keys_of_a_secret_are_a_file_of_the_gateway_alone(
    value: str, setting: str, volume: str, folder: str
) -> None:
    rendered = render({"gateway": {value: {"secret": "speech-keys", "file": "k.yaml"}}})
    setting_of = attrgetter(setting)
    assert setting_of(rendered.deployment_file().gateway) == f"{folder}/k.yaml"
    for name, pod in rendered.pods().items():
        secrets = [each for each in pod["volumes"] if "secret" in each]
        (container,) = pod["containers"]
        mounts = {each["name"]: each for each in container["volumeMounts"]}
        if not name.endswith("gateway"):
            assert not secrets
            continue
        assert secrets == [{"name": volume, "secret": {"secretName": "speech-keys"}}]
        assert mounts[volume]["mountPath"] == folder
        assert "subPath" not in mounts[volume], "it would never change"
    stock = render()
    assert setting_of(stock.deployment_file().gateway) == ""
    assert "speech-keys" not in str(stock)


def test_each_stage_takes_its_own_claim_when_it_has_one() -> None:
    pods = render(
        {
            "model": CLAIM["model"] | {"existingClaim": "shared"},
            "stages": {"talker": {"modelClaim": "own"}},
        }
    ).pods()
    claims = {
        name: next(v for v in pods[name]["volumes"] if v["name"] == "model")[
            "persistentVolumeClaim"
        ]["claimName"]
        for name in (THINKER, TALKER)
    }
    assert claims == {THINKER: "shared", TALKER: "own"}


@pytest.mark.parametrize(("values", "mounted"), [({}, False), (CLAIM, True)])
def test_a_model_volume_is_mounted_unless_the_model_is_in_the_image(
    values: Values, mounted: bool
) -> None:
    pod = render(values).pods()[THINKER]
    (stage,) = pod["containers"]
    assert ("model" in {each["name"] for each in pod["volumes"]}) is mounted
    assert ("model" in {each["name"] for each in stage["volumeMounts"]}) is mounted


def test_notes_say_that_the_model_is_small_only_when_it_is_the_embedded_one() -> None:
    assert "very small model" in render().notes
    assert "very small model" not in render(CLAIM).notes


def test_images_are_of_the_charts_application_version_unless_told() -> None:
    with helm_python.Chart.load(CHART) as chart:
        version = chart.metadata["appVersion"]
    rendered = render({"stages": {"talker": {"image": {"tag": "dev"}}}})
    images = {name: pod["containers"][0]["image"] for name, pod in rendered.pods().items()}
    assert images[THINKER] == f"{REGISTRY}/antiphon-stage:{version}-cpu"
    assert images[TALKER] == f"{REGISTRY}/antiphon-stage:dev"
    assert images[GATEWAY] == f"{REGISTRY}/antiphon-gateway:{version}"


def test_images_have_the_variant_that_their_stage_needs() -> None:
    stages = {
        "thinker": {"config": {"engine": "vllm"}},
        "code2wav": {"accelerator": {"type": "cpu"}, "image": {"repository": "other.example/own"}},
    }
    rendered = render(
        {
            "images": {"registry": "registry.example:5000/speech/", "tag": "1"},
            "stageDefaults": {"accelerator": {"type": "nvidia"}},
            "stages": stages,
            "gateway": {"image": {"digest": "sha256:" + "0f" * 32}},
        }
    )
    images = {name: pod["containers"][0]["image"] for name, pod in rendered.pods().items()}
    ours = "registry.example:5000/speech"
    assert images[THINKER] == f"{ours}/antiphon-stage:1-vllm"
    assert images[TALKER] == f"{ours}/antiphon-stage:1-cuda"
    assert images[CODE2WAV] == "other.example/own:1-cpu"
    assert images[GATEWAY] == f"{ours}/antiphon-gateway:1@sha256:{'0f' * 32}"


def test_images_without_a_registry_are_those_of_the_nodes_alone() -> None:
    loaded = render({"images": {"tag": "dev", "pullPolicy": "Never"}}).pods()
    for name, pod in loaded.items():
        (container,) = pod["containers"]
        assert container["imagePullPolicy"] == "Never"
        kind = "gateway" if name.endswith(("gateway", "smoke")) else "stage"
        assert container["image"] == f"antiphon-{kind}:dev" + "-cpu" * (kind == "stage")


def test_replicas_are_left_to_others_when_they_are_null() -> None:
    everybody = {"stageDefaults": {"replicas": None}, "gateway": {"replicas": None}}
    for name, deployment in render(everybody).of_kind("Deployment").items():
        assert "replicas" not in deployment["spec"], name
    deployments = render({"stages": {"talker": {"replicas": None}}}).of_kind("Deployment")
    assert "replicas" not in deployments[TALKER]["spec"]
    assert deployments[THINKER]["spec"]["replicas"] == 1


def test_a_rollout_fails_later_than_the_slowest_start() -> None:
    startup = {"periodSeconds": 30, "failureThreshold": 100, "initialDelaySeconds": 60}
    stage = {"probes": {"startup": startup}}
    for values, start_s in (({}, 1800), ({"stages": {"thinker": stage}}, 3060)):
        rendered = render(values)
        grace_s = rendered.pods()[THINKER]["terminationGracePeriodSeconds"]
        spec = rendered.of_kind("Deployment")[THINKER]["spec"]
        assert spec["progressDeadlineSeconds"] >= start_s + grace_s + 300


def test_a_volume_is_bounded_by_the_values() -> None:
    values = {"stageDefaults": {"tmp": {"size": "7Gi"}}, "gateway": {"tmp": {"size": "9Mi"}}}
    pods = render(values).pods()
    for name, size in ((THINKER, "7Gi"), (GATEWAY, "9Mi")):
        (tmp,) = (each for each in pods[name]["volumes"] if each["name"] == "tmp")
        assert tmp["emptyDir"] == {"sizeLimit": size}


def test_extra_objects_are_rendered_with_the_charts_templates() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "{{ .Release.Name }}-a"}}
    text = 'apiVersion: v1\nkind: Secret\nmetadata: {name: {{ include "antiphon.fullname" . }}}'
    rendered = render({"extraObjects": [secret, text]})
    assert set(rendered.of_kind("Secret")) == {"demo-a", "demo-antiphon"}


def test_an_upgrade_of_the_chart_alone_keeps_the_pods(tmp_path: Path) -> None:
    """A stage loads its weights for minutes: nothing of the chart's own version is in its pod."""
    for version in ("1", "2"):
        chart = shutil.copytree(CHART, tmp_path / version)
        file = chart / "Chart.yaml"
        file.write_text(re.sub(r"(?m)^version: .*", f"version: {version}.0.0", file.read_text()))
    templates = [
        {
            name: each["spec"]["template"]
            for name, each in render(chart=chart).of_kind("Deployment").items()
        }
        for chart in sorted(tmp_path.iterdir())
    ]
    assert templates[0] == templates[1]


def test_the_family_of_the_tests_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "families" / "carillon"))
    pipeline = pipeline_named("carillon")
    rendered = render(
        {"model": {"pipeline": pipeline.name}, "stages": {role: {} for role in pipeline.roles}}
    )
    pods = {f"demo-antiphon-{role}" for role in pipeline.roles}
    assert set(rendered.of_kind("Deployment")) == {*pods, GATEWAY}
    assert set(rendered.deployment_file().stages) == set(pipeline.roles)
