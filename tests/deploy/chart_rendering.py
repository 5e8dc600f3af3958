"""Renders the chart without a cluster, through the Helm SDK.

`helm_python.Chart.render` gives text per template and does not parse it; here it
becomes the objects that a cluster would get.
"""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import helm_python
import yaml

from antiphon.deployment.schema import Deployment, load_deployment

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "antiphon"
PRESETS = sorted(path.name.removesuffix("-values.yaml") for path in CHART.glob("ci/*.yaml"))

REGISTRY = "registry.example/speech"

Values = dict[str, Any]
KubernetesObject = dict[str, Any]


@dataclass(frozen=True)
class Rendered:
    """The objects of a release, and what is printed after an install."""

    objects: tuple[KubernetesObject, ...]
    notes: str

    def of_kind(self, kind: str) -> dict[str, KubernetesObject]:
        """The objects of a kind by name."""
        return {each["metadata"]["name"]: each for each in self.objects if each["kind"] == kind}

    def pods(self) -> dict[str, KubernetesObject]:
        """Every pod's spec by the name of the object that has it."""
        templates = {
            name: each["spec"]["template"]["spec"]
            for name, each in self.of_kind("Deployment").items()
        }
        return templates | {name: each["spec"] for name, each in self.of_kind("Pod").items()}

    def annotations(self, deployment: str) -> dict[str, str]:
        """Annotations of a Deployment's pods."""
        template = self.of_kind("Deployment")[deployment]["spec"]["template"]
        return cast(dict[str, str], template["metadata"]["annotations"])

    def deployment_file(self) -> Deployment:
        """The deployment.yaml of the ConfigMap, read as every process reads it."""
        (config,) = (
            each for each in self.of_kind("ConfigMap").values() if "deployment.yaml" in each["data"]
        )
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "deployment.yaml"
            path.write_text(config["data"]["deployment.yaml"])
            return load_deployment(path)


def preset(name: str) -> Values:
    """The values of one of the chart's ci presets."""
    return cast(Values, yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text()))


def render(
    values: Values | None = None,
    *,
    release: str = "demo",
    namespace: str = "speech",
    chart: Path = CHART,
    kubernetes: str = "",
) -> Rendered:
    """Render the chart, with images of a registry unless told, for a version of Kubernetes (the
    SDK's own if empty). Raises `HelmValuesError` or `HelmRenderError`.
    """
    values = {"images": {"registry": REGISTRY}} | (values or {})
    # Repeated renders are cached, and each caller gets a copy that it may change.
    objects, notes = _render(json.dumps(values), release, namespace, chart, kubernetes)
    return Rendered(tuple(json.loads(objects)), notes)


@functools.cache
def _render(
    values: str, release: str, namespace: str, directory: Path, kubernetes: str
) -> tuple[str, str]:
    """The objects as JSON, and the notes."""
    options = {"name": release, "namespace": namespace}
    if kubernetes:
        options["kube_version"] = f"v{kubernetes}.0"
    with helm_python.Chart.load(directory) as chart:
        # What `Chart.render` calls, which has no argument for the version.
        told = helm_python._native.call_string(
            "helm_render", chart._raw(), values, json.dumps(options)
        )
    texts: dict[str, str] = json.loads(told)
    notes = next(texts.pop(path) for path in list(texts) if path.endswith("NOTES.txt"))
    # The parser in C reads the same language in a tenth of the time.
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    objects = [each for text in texts.values() for each in yaml.load_all(text, loader) if each]
    return json.dumps(objects), notes


def containers(pod: KubernetesObject) -> list[KubernetesObject]:
    """All containers of a pod's spec, those that run first included."""
    return [*pod.get("initContainers", []), *pod["containers"]]
