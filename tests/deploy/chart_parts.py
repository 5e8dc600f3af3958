"""Parts of what the chart renders, in which tests plant faults."""

from __future__ import annotations

from typing import Any

from tests.deploy.chart_rendering import Rendered

STAGE, OTHER, GATEWAY, SCALER = (
    f"demo-antiphon-{role}" for role in ("thinker", "talker", "gateway", "scaler")
)


def spec(rendered: Rendered, name: str = STAGE) -> dict[str, Any]:
    found: dict[str, Any] = rendered.of_kind("Deployment")[name]["spec"]
    return found


def pod(rendered: Rendered, name: str = STAGE) -> dict[str, Any]:
    return rendered.pods()[name]


def box(rendered: Rendered, name: str = STAGE) -> dict[str, Any]:
    found: list[dict[str, Any]] = pod(rendered, name)["containers"]
    (container,) = found
    return container


def service(rendered: Rendered, name: str = STAGE) -> dict[str, Any]:
    found: dict[str, Any] = rendered.of_kind("Service")[name]["spec"]
    return found


def budget(rendered: Rendered, name: str = STAGE) -> dict[str, Any]:
    found: dict[str, Any] = rendered.of_kind("PodDisruptionBudget")[name]["spec"]
    return found


def labels(rendered: Rendered, name: str = STAGE) -> dict[str, str]:
    found: dict[str, str] = spec(rendered, name)["template"]["metadata"]["labels"]
    return found


def volume(rendered: Rendered, name: str, pod_name: str = STAGE) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = pod(rendered, pod_name)["volumes"]
    (found,) = (each for each in volumes if each["name"] == name)
    return found


def mount(rendered: Rendered, name: str) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = box(rendered)["volumeMounts"]
    (found,) = (each for each in mounts if each["name"] == name)
    return found


def filling(rendered: Rendered) -> dict[str, Any]:
    found: list[dict[str, Any]] = pod(rendered)["initContainers"]
    (container,) = found
    return container


def one(rendered: Rendered, kind: str) -> dict[str, Any]:
    (found,) = rendered.of_kind(kind).values()
    return found


def rule(rendered: Rendered) -> dict[str, Any]:
    (found,) = one(rendered, "Role")["rules"]
    assert isinstance(found, dict)
    return found


def scaled(rendered: Rendered) -> dict[str, Any]:
    found: dict[str, Any] = rendered.of_kind("ScaledObject")[STAGE]["spec"]
    return found


def file(rendered: Rendered) -> dict[str, Any]:
    found: dict[str, Any] = rendered.of_kind("ConfigMap")["demo-antiphon"]["data"]
    return found


def change_file(rendered: Rendered, old: str, new: str) -> None:
    content = file(rendered)
    content["deployment.yaml"] = content["deployment.yaml"].replace(old, new)
