"""What an API server or Pod Security refuses and no schema sees, and what the chart promises: a
policy yields a sentence for each fault, and `test_chart_policies.py` plants some of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.deploy.chart_rendering import KubernetesObject, Rendered, containers

Faults = Iterator[str]
Policy = Callable[[Rendered], Faults]
POLICIES: dict[str, Policy] = {}

VOLUMES_ALLOWED = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral",
    "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12} | {
    f"{unit}i": 1024.0 ** (power + 1) for power, unit in enumerate("KMGT")
}
SELECTOR = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
SECRET_NAME = re.compile(r"TOKEN|PASSWORD|SECRET|API_KEY|CREDENTIAL")


def policy(function: Policy) -> Policy:
    """Register a policy by its name."""
    POLICIES[function.__name__] = function
    return function


def amount(quantity: object) -> float:
    """A quantity as a number. Raises `ValueError` or `KeyError` for what is none."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(quantity)).groups()  # type: ignore[union-attr]
    return float(number) * UNITS[unit]


def pods_and_containers(rendered: Rendered) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every container with its pod and the pod's name."""
    for name, pod in rendered.pods().items():
        for container in containers(pod):
            yield name, pod, container


def pod_labels(rendered: Rendered) -> dict[str, dict[str, str]]:
    """The labels of every pod."""
    labels = {
        name: each["spec"]["template"]["metadata"]["labels"]
        for name, each in rendered.of_kind("Deployment").items()
    }
    return labels | {n: each["metadata"]["labels"] for n, each in rendered.of_kind("Pod").items()}


def selected(rendered: Rendered, selector: dict[str, str]) -> list[str]:
    """The pods that a selector matches."""
    return [name for name, own in pod_labels(rendered).items() if selector.items() <= own.items()]


def restricted_faults(pod: KubernetesObject) -> Faults:
    """What Pod Security "restricted" has against a pod's spec."""
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    for volume in pod.get("volumes", []):
        yield from (f"volume {kind}" for kind in set(volume) - {"name"} - VOLUMES_ALLOWED)
    shared = pod.get("securityContext", {})
    for container in containers(pod):
        own = shared | container.get("securityContext", {})
        capabilities = own.get("capabilities", {})
        if own.get("privileged"):
            yield "privileged"
        if own.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if "ALL" not in capabilities.get("drop", []) or capabilities.get("add"):
            yield "capabilities"
        if own.get("runAsNonRoot") is not True or own.get("runAsUser") == 0:
            yield "runAsNonRoot"
        if own.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccompProfile"
        yield from ("hostPort" for port in container.get("ports", []) if "hostPort" in port)


@policy
def pods_are_restricted(rendered: Rendered) -> Faults:
    for name, pod in rendered.pods().items():
        yield from (f"{name}: {fault}" for fault in restricted_faults(pod))


@policy
def only_gateways_have_a_token(rendered: Rendered) -> Faults:
    accounts = rendered.of_kind("ServiceAccount")
    for name, pod in rendered.pods().items():
        token = pod.get("automountServiceAccountToken")
        account = pod.get("serviceAccountName")
        if token is not False and (not name.endswith("-gateway") or account not in accounts):
            yield f"{name} mounts a token"
        if pod.get("enableServiceLinks") is not False:
            yield f"{name} has the variables of services"


@policy
def roles_read_endpoint_slices_alone(rendered: Rendered) -> Faults:
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        yield from (f"{kind} {name} is wider than its namespace" for name in rendered.of_kind(kind))
    for name, role in rendered.of_kind("Role").items():
        for rule in role["rules"]:
            allowed = rule["apiGroups"] == ["discovery.k8s.io"]
            if not allowed or rule["resources"] != ["endpointslices"]:
                yield f"{name} reads more than it needs"
            if not set(rule["verbs"]) <= {"get", "list", "watch"}:
                yield f"{name} may write"
    for name, binding in rendered.of_kind("RoleBinding").items():
        if binding["roleRef"]["name"] not in rendered.of_kind("Role"):
            yield f"{name} binds a role that there is not"
        for subject in binding["subjects"]:
            if subject["name"] not in rendered.of_kind("ServiceAccount"):
                yield f"{name} is for another account"


@policy
def root_is_read_only(rendered: Rendered) -> Faults:
    for name, pod, container in pods_and_containers(rendered):
        empty = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        if container["securityContext"].get("readOnlyRootFilesystem") is not True:
            yield f"{name} writes to its root"
        if mounts.get("/tmp") not in empty:
            yield f"{name} has no /tmp"
        if {"name": "HOME", "value": "/tmp"} not in container["env"]:
            yield f"{name} has no home"


@policy
def resources_are_complete(rendered: Rendered) -> Faults:
    for name, _, container in pods_and_containers(rendered):
        requests, limits = (container["resources"].get(k, {}) for k in ("requests", "limits"))
        yield from (f"{name}: no request {each}" for each in {"cpu", "memory"} - requests.keys())
        if "memory" not in limits:
            yield f"{name}: no memory limit"
        for resource, quantity in requests.items():
            limit = limits.get(resource, quantity)
            if amount(quantity) > amount(limit):
                yield f"{name}: requests more {resource} than its limit"
            if "/" in resource and quantity != limits.get(resource):
                yield f"{name}: {resource} is requested and limited differently"
        yield from (f"{name}: {e} only limited" for e in limits.keys() - requests if "/" in e)


@policy
def probes_are_complete(rendered: Rendered) -> Faults:
    for deployment in rendered.of_kind("Deployment").values():
        name = deployment["metadata"]["name"]
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            ports = {port["containerPort"] for port in container["ports"]}
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = container.get(kind, {})
                handlers = [probe[k] for k in ("grpc", "httpGet", "tcpSocket") if k in probe]
                if len(handlers) != 1 or handlers[0]["port"] not in ports:
                    yield f"{name}: {kind} asks no port of its container by number"
                if probe.get("timeoutSeconds", 1) < 5:
                    yield f"{name}: {kind} gives up too soon"


@policy
def scaled_workloads_have_one_owner(rendered: Rendered) -> Faults:
    deployments = rendered.of_kind("Deployment")
    ports = {
        f"{name}.speech:{port['port']}"
        for name, service in rendered.of_kind("Service").items()
        for port in service["spec"]["ports"]
    }
    for kind in ("HorizontalPodAutoscaler", "ScaledObject"):
        for name, scaler in rendered.of_kind(kind).items():
            spec = scaler["spec"]
            target = deployments.get(spec["scaleTargetRef"]["name"])
            if target is None or "replicas" in target["spec"]:
                yield f"{name} scales nothing, or what the chart sets as well"
            least = spec.get("minReplicas", spec.get("minReplicaCount", 0))
            most = spec.get("maxReplicas", spec.get("maxReplicaCount", 0))
            if not 1 <= least <= most:
                yield f"{name}: from {least} to {most}"
            for trigger in spec.get("triggers", ()):
                if trigger["metadata"]["scalerAddress"] not in ports:
                    yield f"{name} asks where nobody answers"
                if trigger["metadata"]["stage"] not in rendered.deployment_file().stages:
                    yield f"{name} asks for another stage"


@policy
def selectors_match_their_own_pods(rendered: Rendered) -> Faults:
    for kind, path in (("Deployment", "matchLabels"), ("PodDisruptionBudget", "matchLabels")):
        for name, each in rendered.of_kind(kind).items():
            if selected(rendered, each["spec"]["selector"][path]) != [name]:
                yield f"{kind} {name} selects others"
    for name, service in rendered.of_kind("Service").items():
        if len(selected(rendered, service["spec"]["selector"])) != 1:
            yield f"Service {name} selects not one workload"


@policy
def pods_carry_no_versions(rendered: Rendered) -> Faults:
    """A selector can never change, and a pod whose labels change is replaced."""
    for name, deployment in rendered.of_kind("Deployment").items():
        if deployment["spec"]["selector"]["matchLabels"].keys() != SELECTOR:
            yield f"{name}: a selector of other labels"
    for name, labels in pod_labels(rendered).items():
        own = {label for label in labels if label.startswith(("app.kubernetes.io/", "helm.sh/"))}
        if own != SELECTOR | {"app.kubernetes.io/part-of"}:
            yield f"{name}: a pod with other labels"


@policy
def service_ports_are_container_ports(rendered: Rendered) -> Faults:
    pods = rendered.pods()
    for name, service in rendered.of_kind("Service").items():
        (pod,) = selected(rendered, service["spec"]["selector"])
        offered = {port["containerPort"] for c in pods[pod]["containers"] for port in c["ports"]}
        ports = service["spec"]["ports"]
        yield from (f"{name}: {p['name']}" for p in ports if p["targetPort"] not in offered)
        yield from (f"{name}: no protocol of {p['name']}" for p in ports if "appProtocol" not in p)
        if len({port["name"] for port in ports}) != len(ports):
            yield f"{name}: two ports of one name"


@policy
def stage_services_are_headless(rendered: Rendered) -> Faults:
    for name, service in rendered.of_kind("Service").items():
        spec = service["spec"]
        headless = spec.get("clusterIP") == "None"
        if headless is name.endswith(("-gateway", "-gateway-metrics", "-scaler")):
            yield f"{name} is {'' if headless else 'not '}headless"
        if name.endswith("-gateway") is (spec.get("publishNotReadyAddresses") is True):
            yield f"{name} has the wrong pods while nothing is ready"


@policy
def deployments_roll_out_in_their_time(rendered: Rendered) -> Faults:
    for name, deployment in rendered.of_kind("Deployment").items():
        spec = deployment["spec"]
        pod = spec["template"]["spec"]
        starts = [each["startupProbe"] for each in pod["containers"]]
        start_s = max(each["periodSeconds"] * each["failureThreshold"] for each in starts)
        least_s = start_s + pod["terminationGracePeriodSeconds"] + 300
        if spec.get("progressDeadlineSeconds", 600) < least_s:
            yield f"{name} counts as failed before it can have started"
        every = [each["resources"] for each in pod["containers"]]
        gpu = any("claims" in each or any("/" in n for n in each["limits"]) for each in every)
        if gpu and spec["strategy"]["rollingUpdate"]["maxSurge"] != 0:
            yield f"{name} wants a second accelerator to be replaced"


@policy
def empty_volumes_are_bounded(rendered: Rendered) -> Faults:
    for name, pod, container in pods_and_containers(rendered):
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        for volume in pod["volumes"]:
            empty = volume.get("emptyDir")
            if empty is None:
                continue
            if "sizeLimit" not in empty:
                yield f"{name}: {volume['name']} has no bound"
            elif empty.get("medium") == "Memory":
                limit = container["resources"]["limits"]["memory"]
                if amount(empty["sizeLimit"]) >= amount(limit):
                    yield f"{name}: {volume['name']} takes all of its memory"
            elif mounts.get(volume["name"]) == "/dev/shm":
                yield f"{name}: /dev/shm is no memory"


@policy
def volumes_are_mounted_and_exist(rendered: Rendered) -> Faults:
    made = {
        name for kind in ("ConfigMap", "PersistentVolumeClaim") for name in rendered.of_kind(kind)
    }
    for name, pod in rendered.pods().items():
        there = {volume["name"] for volume in pod["volumes"]}
        mounted = {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]}
        before = {mount["name"] for each in containers(pod) for mount in each["volumeMounts"]}
        if mounted != there or before != there:
            yield f"{name}: volumes and mounts differ"
        for volume in pod["volumes"]:
            if "configMap" in volume and volume["configMap"]["name"] not in made:
                yield f"{name}: there is no ConfigMap {volume['configMap']['name']}"


@policy
def names_are_labels(rendered: Rendered) -> Faults:
    for each in rendered.objects:
        name = each["metadata"]["name"]
        if not LABEL.fullmatch(name):
            yield f"{each['kind']} {name}: no DNS label"
        for value in each["metadata"]["labels"].values():
            if not LABEL_VALUE.fullmatch(value):
                yield f"{each['kind']} {name}: the label {value!r}"


@policy
def secrets_are_referred_to(rendered: Rendered) -> Faults:
    yield from (f"Secret {name} is rendered" for name in rendered.of_kind("Secret"))
    for name, _, container in pods_and_containers(rendered):
        for variable in container["env"]:
            if SECRET_NAME.search(variable["name"]) and "value" in variable:
                yield f"{name}: {variable['name']} in clear"


@policy
def disruptions_are_bounded(rendered: Rendered) -> Faults:
    budgets = rendered.of_kind("PodDisruptionBudget")
    yield from (f"{name} has no budget" for name in rendered.of_kind("Deployment").keys() - budgets)
    for name, budget in budgets.items():
        if not budget["spec"].get("maxUnavailable") or "minAvailable" in budget["spec"]:
            yield f"{name}: a node with its pod can never be emptied"
        if budget["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield f"{name}: a broken pod keeps its node"


@policy
def images_are_named_in_full(rendered: Rendered) -> Faults:
    for name, _, container in pods_and_containers(rendered):
        image = container["image"]
        tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
        if tag in ("", "latest"):
            yield f"{name}: {image} may be another one tomorrow"
        if "." not in image.partition("/")[0] and container["imagePullPolicy"] != "Never":
            yield f"{name}: {image} is looked for where it never is"


@policy
def pods_are_spread(rendered: Rendered) -> Faults:
    for name, deployment in rendered.of_kind("Deployment").items():
        template = deployment["spec"]["template"]
        constraints = template["spec"].get("topologySpreadConstraints", [])
        if "kubernetes.io/hostname" not in {each["topologyKey"] for each in constraints}:
            yield f"{name}: all replicas may be on one node"
        for each in constraints:
            if selected(rendered, each["labelSelector"]["matchLabels"]) != [name]:
                yield f"{name}: is spread among others"
