"""Policies of probes, and of how pods end."""

from __future__ import annotations

from tests.deploy.chart_colocation import place_of, roles_of_pods
from tests.deploy.chart_policies import Faults, policy
from tests.deploy.chart_rendering import Rendered


@policy
def stages_answer_probes_at_their_health_port(rendered: Rendered) -> Faults:
    answers = {"startupProbe": "ready", "readinessProbe": "ready", "livenessProbe": "alive"}
    for role, stage in rendered.deployment_file().stages.items():
        name, container = place_of(rendered, role)
        listen = stage.health_listen
        if "--health-listen" in container["command"]:
            # The launcher answers for all of its stages.
            listen = container["command"][container["command"].index("--health-listen") + 1]
        port = int(listen.rpartition(":")[2])
        for kind, answer in answers.items():
            if container.get(kind, {}).get("grpc") != {"port": port, "service": answer}:
                yield f"{name}: {kind} does not ask whether {role} is {answer}"


@policy
def pods_have_time_to_end(rendered: Rendered) -> Faults:
    deployment = rendered.deployment_file()
    roles = roles_of_pods(rendered)
    for name in rendered.of_kind("Deployment"):
        pod = rendered.pods()[name]
        drains = [deployment.stages[role].drain_s for role in roles.get(name, ())]
        drain_s = max(drains, default=deployment.gateway.drain_s)
        for container in pod["containers"]:
            hook = container.get("lifecycle", {}).get("preStop", {})
            before_s = hook.get("sleep", {}).get("seconds", 0)
            if not before_s:
                yield f"{name} is told to stop before others know"
            if pod.get("terminationGracePeriodSeconds", 30) < before_s + drain_s + 10:
                yield f"{name} is killed before its answers are over"
