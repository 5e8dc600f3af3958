"""Policies of the volumes with weights, and of what fills them."""

from __future__ import annotations

from typing import Any

from chart_policies import Faults, policy
from chart_rendering import Rendered


def model_mount(container: dict[str, Any]) -> dict[str, Any]:
    """Where a container has the weights; empty: nowhere."""
    return next((each for each in container["volumeMounts"] if each["name"] == "model"), {})


@policy
def checkpoints_are_read_only(rendered: Rendered) -> Faults:
    for name, pod in rendered.pods().items():
        for container in pod["containers"]:
            mount = model_mount(container)
            if mount and mount.get("readOnly") is not True:
                yield f"{name} can write its checkpoint"


@policy
def downloads_go_where_the_stage_reads(rendered: Rendered) -> Faults:
    for name, pod in rendered.pods().items():
        for download in pod.get("initContainers", ()):
            (stage,) = pod["containers"]
            target, source = model_mount(download), model_mount(stage)
            if not target or target.get("readOnly"):
                yield f"{name} downloads to nowhere"
            if {**target, "readOnly": True} != source:
                yield f"{name} reads something else than what was downloaded"
            directory = {each["name"]: each.get("value") for each in download["env"]}
            if directory.get("MODEL_DIRECTORY") != rendered.deployment_file().model:
                yield f"{name} downloads to another directory"
            if pod["securityContext"].get("fsGroup") != pod["securityContext"]["runAsGroup"]:
                yield f"{name} may not write to a new volume"


@policy
def rollouts_wait_for_downloads(rendered: Rendered) -> Faults:
    for name, deployment in rendered.of_kind("Deployment").items():
        pod = deployment["spec"]["template"]["spec"]
        start = pod["containers"][0]["startupProbe"]
        start_s = start["periodSeconds"] * start["failureThreshold"]
        least_s = start_s + pod["terminationGracePeriodSeconds"] + 1800
        if "initContainers" in pod and deployment["spec"]["progressDeadlineSeconds"] < least_s:
            yield f"{name} counts as failed while it downloads"


@policy
def claims_exist_and_are_kept(rendered: Rendered) -> Faults:
    claims = rendered.of_kind("PersistentVolumeClaim")
    for name, claim in claims.items():
        annotations = claim["metadata"].get("annotations", {})
        if annotations.get("helm.sh/resource-policy") != "keep":
            yield f"{name} loses its weights with the release"
    volumes = [each for pod in rendered.pods().values() for each in pod["volumes"]]
    used = {
        e["persistentVolumeClaim"]["claimName"] for e in volumes if "persistentVolumeClaim" in e
    }
    yield from (f"{name} is used by nobody" for name in claims.keys() - used)
