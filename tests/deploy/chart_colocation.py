"""Where the stages of a release run, and policies of those that share a pod."""

from __future__ import annotations

from typing import Any

from tests.deploy.chart_policies import Faults, policy, selected
from tests.deploy.chart_rendering import Rendered

LAUNCHER = ["python", "-m", "antiphon_tools.launcher", "stages"]
STAGE = ["python", "-m", "antiphon_services"]


def stages_of(container: dict[str, Any]) -> list[str]:
    """The roles that a container runs, by its command."""
    command = container.get("command", [])
    for start in (LAUNCHER, STAGE):
        if command[: len(start)] == start:
            return [str(word) for word in command[len(start) : command.index("--config")]]
    return []


def place_of(rendered: Rendered, role: str) -> tuple[str, dict[str, Any]]:
    """The name of the pod that a stage runs in, and its container."""
    ((name, container),) = (
        (name, container)
        for name, pod in rendered.pods().items()
        for container in pod["containers"]
        if role in stages_of(container)
    )
    return name, container


def roles_of_pods(rendered: Rendered) -> dict[str, list[str]]:
    """The roles in each pod that has any."""
    pods = rendered.pods().items()
    found = {name: [r for c in pod["containers"] for r in stages_of(c)] for name, pod in pods}
    return {name: roles for name, roles in found.items() if roles}


@policy
def every_stage_runs_once_and_its_service_leads_there(rendered: Rendered) -> Faults:
    deployment = rendered.deployment_file()
    running = sorted(role for roles in roles_of_pods(rendered).values() for role in roles)
    if running != sorted(deployment.stages):
        yield f"runs {running}, not {sorted(deployment.stages)}"
        return
    for role, stage in deployment.stages.items():
        pod, container = place_of(rendered, role)
        service = rendered.of_kind("Service")[deployment.gateway.discovery.services[role]]["spec"]
        if selected(rendered, service["selector"]) != [pod]:
            yield f"the service of {role} leads to another pod"
        listens = {int(each.rpartition(":")[2]) for each in (stage.listen, stage.metrics_listen)}
        if {port["targetPort"] for port in service["ports"]} != listens:
            yield f"the service of {role} leads to ports of another stage"
        if not listens <= {port["containerPort"] for port in container["ports"]}:
            yield f"{role} listens at ports that its container does not have"
        if stage.advertise.rpartition(":")[2] != stage.listen.rpartition(":")[2]:
            yield f"{role} tells others another port than its own"


@policy
def ports_of_a_pod_are_told_apart(rendered: Rendered) -> Faults:
    for name, pod in rendered.pods().items():
        ports = [port for each in pod["containers"] for port in each.get("ports", ())]
        for key in ("name", "containerPort"):
            if len({port[key] for port in ports}) != len(ports):
                yield f"{name}: two ports have the same {key}"


@policy
def stages_of_a_pod_share_their_memory(rendered: Rendered) -> Faults:
    for name, pod in rendered.pods().items():
        volumes = {
            mount["name"]
            for container in pod["containers"]
            if stages_of(container)
            for mount in container["volumeMounts"]
            if mount["mountPath"] == "/dev/shm"
        }
        if len(volumes) > 1:
            yield f"{name}: its containers have different /dev/shm"


@policy
def claims_are_used_and_made(rendered: Rendered) -> Faults:
    made = rendered.of_kind("ResourceClaimTemplate")
    for name, pod in rendered.pods().items():
        claims = {e["name"]: e["resourceClaimTemplateName"] for e in pod.get("resourceClaims", ())}
        for container in pod["containers"]:
            own = {each["name"] for each in container["resources"].get("claims", ())}
            if own != claims.keys():
                yield f"{name}: claims of the pod and of {container['name']} differ"
            if own and any("/" in each for each in container["resources"]["limits"]):
                yield f"{name}: {container['name']} has accelerators of two kinds"
        yield from (f"{name}: nobody makes {each}" for each in set(claims.values()) - made.keys())
