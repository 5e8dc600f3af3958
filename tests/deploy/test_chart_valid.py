"""Every preset renders objects that Kubernetes knows."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import helm_python
import kubernetes_validate
import pytest

from antiphon.pipelines.registry import own_pipelines
from antiphon_tools.chart.generated import FILES
from tests.deploy.chart_rendering import CHART, PRESETS, preset, render

# The oldest that Chart.yaml allows, and the newest that has schemas here.
KUBERNETES_VERSIONS = ("1.30", "1.37")
# The oldest that has claims of devices, in the version that is rendered.
CLAIMS_SINCE = "1.34"
# Kinds that Kubernetes has no schemas of; they are rendered only where a value asks for them.
DEFINED_ELSEWHERE = {"ScaledObject", "HTTPRoute", "GRPCRoute", "PodMonitor", "Certificate"}


@pytest.mark.parametrize("name", PRESETS)
def test_chart_lints_without_findings_when_preset_is_used(name: str) -> None:
    report = helm_python.lint(CHART, preset(name), strict=True, kube_version="v1.30.0")
    findings = [each for each in report["messages"] if each["error"] != "icon is recommended"]
    assert not findings
    assert not report["errors"]


def test_presets_cover_the_ways_to_run() -> None:
    ways = {"default", "everything", "kind-cpu", "nvidia", "vllm", "two-gpus", "colocated", "dra"}
    cards = {"one-h100", "one-h200"}
    families = {
        "qwen2.5-omni",
        "qwen2.5-omni-3b",
        "qwen3-tts",
        "cosyvoice3",
        "mimo-audio",
        "ming-tts",
    }
    assert set(PRESETS) == ways | cards | families


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("name", PRESETS)
def test_objects_fit_the_kubernetes_schema_when_preset_is_used(name: str, version: str) -> None:
    if name == "dra" and version == KUBERNETES_VERSIONS[0]:
        version = CLAIMS_SINCE
    objects = render(preset(name), kubernetes=version).objects
    assert objects
    for each in objects:
        if each["kind"] not in DEFINED_ELSEWHERE:
            assert kubernetes_validate.validate(each, version, strict=True) == version


def test_objects_of_other_projects_are_rendered_only_when_asked_for() -> None:
    kinds = {each["kind"] for each in render().objects}
    assert not kinds & DEFINED_ELSEWHERE
    assert {each["kind"] for each in render(preset("everything")).objects} >= DEFINED_ELSEWHERE


def test_claims_of_devices_are_refused_by_name_where_the_cluster_has_none() -> None:
    with pytest.raises(helm_python.HelmRenderError) as failure:
        render(preset("dra"), kubernetes="1.33")
    assert (
        "colocated.language.accelerators: claimed needs resource.k8s.io/v1 (Kubernetes 1.34 or "
        "newer), which this cluster (v1.33.0) does not have; set it to shared"
    ) in str(failure.value)


def test_schema_check_reports_a_misspelt_field() -> None:
    (first, *_) = render().of_kind("Deployment").values()
    broken = copy.deepcopy(first)
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(broken, KUBERNETES_VERSIONS[0], strict=True)


@pytest.mark.parametrize("name", PRESETS)
def test_objects_are_told_apart_and_belong_to_the_release(name: str) -> None:
    objects = render(preset(name)).objects
    keys = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(keys) == len(set(keys))
    assert {each["metadata"]["namespace"] for each in objects} == {"speech"}
    assert {each["metadata"]["labels"]["app.kubernetes.io/instance"] for each in objects} == {
        "demo"
    }


def test_render_is_the_same_when_repeated() -> None:
    assert render(preset("nvidia")) == render(preset("nvidia"))


def test_templates_ask_no_cluster_and_draw_no_lots() -> None:
    for path in (CHART / "templates").rglob("*"):
        if path.is_file():
            text = path.read_text()
            for word in ("lookup ", "randAlpha", "randNumeric", "uuidv4", "genCA", "now |"):
                assert word not in text, f"{path.name}: {word}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_generated_files_are_those_of_the_declarations_and_the_schema(path: Path) -> None:
    assert path.read_text() == FILES[path](), "run `make chart`"


def _families_named_in(text: str) -> set[str]:
    pipelines = own_pipelines()
    names = set(pipelines) | {role for each in pipelines.values() for role in each.roles}
    return names & set(re.findall(r"[a-z][a-z0-9_]*", text.lower()))


def test_templates_and_values_name_no_family_and_no_stage() -> None:
    name, pipeline = next(iter(own_pipelines().items()))
    assert _families_named_in(f"{{{{ .stages.{pipeline.roles[0]} }}}} # {name}") == {
        name,
        pipeline.roles[0],
    }
    for path in [CHART / "values.yaml", *(CHART / "templates").rglob("*")]:
        if path.is_file():
            assert not _families_named_in(path.read_text()), path.name


def test_package_has_the_schema_and_not_the_presets(tmp_path: Path) -> None:
    with helm_python.Chart.load(CHART) as chart:
        archive = chart.save(tmp_path)
    helm_python.expand(tmp_path, archive)
    files = {
        str(path.relative_to(tmp_path / "antiphon")) for path in (tmp_path / "antiphon").rglob("*")
    }
    assert {"values.schema.json", "values.yaml", "pipelines.yaml", "README.md"} <= files
    assert not any(path.startswith("ci") for path in files)


def test_readme_describes_every_top_level_value() -> None:
    with helm_python.Chart.load(CHART) as chart:
        values = chart.values
    readme = (CHART / "README.md").read_text()
    missing = [key for key in values if f"`{key}" not in readme]
    stage = [key for key in values["stageDefaults"] if f"`stageDefaults.{key}" not in readme]
    gateway = [
        key
        for key in values["gateway"]
        if key not in values["stageDefaults"] and f"`gateway.{key}" not in readme
    ]
    assert not missing + stage + gateway
