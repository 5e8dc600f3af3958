"""Policies of the volumes with weights, and of what fills them."""

from __future__ import annotations

from typing import Any

from tests.deploy.chart_policies import Faults, policy
from tests.deploy.chart_rendering import Rendered


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
        downloads = pod.get("initContainers", ())
        written = [{**model_mount(each), "readOnly": True} for each in downloads]
        for container in pod["containers"] if downloads else ():
            if model_mount(container) not in written:
                yield f"{name} reads something else than what was downloaded"
        for download in downloads:
            target = model_mount(download)
            if not target or target.get("readOnly"):
                yield f"{name} downloads to nowhere"
            directory = {each["name"]: each.get("value") for each in download["env"]}
            if directory.get("MODEL_DIRECTORY") != rendered.deployment_file().model:
                yield f"{name} downloads to another directory"
            # Neither is there where the cluster chooses users.
            security = pod["securityContext"]
            if security.get("fsGroup") != security.get("runAsGroup"):
                yield f"{name} may not write to a new volume"


@policy
def rollouts_wait_for_downloads(rendered: Rendered) -> Faults:
    for name, deployment in rendered.of_kind("Deployment").items():
        pod = deployment["spec"]["template"]["spec"]
        starts = [each["startupProbe"] for each in pod["containers"]]
        start_s = max(each["periodSeconds"] * each["failureThreshold"] for each in starts)
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
