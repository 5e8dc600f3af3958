"""Policies of what may talk to what, and of what leads to the pods."""

from __future__ import annotations

from typing import Any

from tests.deploy.chart_policies import Faults, policy, selected
from tests.deploy.chart_rendering import Rendered


@policy
def networks_and_routes_lead_to_pods(rendered: Rendered) -> Faults:
    policies = rendered.of_kind("NetworkPolicy")
    for name, each in policies.items():
        if selected(rendered, each["spec"]["podSelector"]["matchLabels"]) != [name]:
            yield f"NetworkPolicy {name} is for others"
        if not each["spec"].get("ingress"):
            yield f"NetworkPolicy {name} lets nobody in"
    if policies:
        yield from (f"{name} is open" for name in rendered.of_kind("Deployment").keys() - policies)
    services = rendered.of_kind("Service")
    for name, ingress in rendered.of_kind("Ingress").items():
        for rule in ingress["spec"]["rules"]:
            backend = rule["http"]["paths"][0]["backend"]["service"]
            ports = services.get(backend["name"], {}).get("spec", {}).get("ports", ())
            if backend["port"]["name"] not in {port["name"] for port in ports}:
                yield f"Ingress {name} leads nowhere"
    for name, route in rendered.of_kind("HTTPRoute").items():
        for backend in route["spec"]["rules"][0]["backendRefs"]:
            ports = services.get(backend["name"], {}).get("spec", {}).get("ports", ())
            if backend["port"] not in {port["port"] for port in ports}:
                yield f"HTTPRoute {name} leads nowhere"


@policy
def stages_reach_their_collector(rendered: Rendered) -> Faults:
    policies = rendered.of_kind("NetworkPolicy")
    for role, stage in rendered.deployment_file().stages.items():
        name = next((n for n in policies if n.endswith("-" + role.replace("_", "-"))), "")
        if name and stage.trace_endpoint:
            port = {"protocol": "TCP", "port": int(stage.trace_endpoint.rpartition(":")[2])}
            rules = policies[name]["spec"].get("egress", ())
            if not any(port in rule.get("ports", ()) for rule in rules):
                yield f"{name}: traces of {role} are not let out"


@policy
def monitors_of_the_stages_reach_the_gateway(rendered: Rendered) -> Faults:
    policies = {n: each["spec"]["ingress"] for n, each in rendered.of_kind("NetworkPolicy").items()}
    for name, pod in rendered.pods().items():
        named = {
            p["name"]: p["containerPort"] for c in pod["containers"] for p in c.get("ports", ())
        }
        if "metrics" not in named or name not in policies:
            continue
        if name.endswith("-gateway"):
            continue
        monitors = _let_in(policies[name], named["metrics"])
        for gateway in (each for each in policies if each.endswith("-gateway")):
            ports = {p["name"] for c in rendered.pods()[gateway]["containers"] for p in c["ports"]}
            endpoints = _let_in(policies[gateway], "metrics" if "metrics" in ports else "http")
            if not all(each in endpoints for each in monitors) and None not in endpoints:
                yield f"{gateway} keeps out who reads the series of {name}"


def _let_in(ingress: list[dict[str, Any]], port: str | int) -> list[Any]:
    """Who may reach the port by its own rule; None: everybody."""
    rules = (rule for rule in ingress if port in [each["port"] for each in rule.get("ports", ())])
    return [peer for rule in rules for peer in rule.get("from", [None])]
