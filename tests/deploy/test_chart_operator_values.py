"""Every value of the chart is in its schema and its README, and changes what is rendered."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import helm_python
import yaml

from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon.deployment.tls_config import MutualTlsConfig
from antiphon_tools.chart.generated import DECIDED_BY_CHART
from tests.deploy.chart_rendering import CHART, Rendered, Values, preset, render

VALUES: Values = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
README = (CHART / "README.md").read_text()
# Written as Kubernetes defines them, or as the product's own schema does.
OF_OTHERS = ("resources", "podSecurityContext", "securityContext", "probes", "config")
Path = tuple[str, ...]


def leaves(values: Values, under: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each value that is not a mapping with keys of its own, by its path."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*under, key))
        else:
            yield (*under, key), value


def at(values: Values, path: Path) -> Any:
    for key in path:
        values = values[key]
    return values


def with_value(values: Values, path: Path, value: Any) -> Values:
    """A copy with another value at that path."""
    changed = copy.deepcopy(values)
    inner = changed
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    return changed


def dotted(path: Path) -> str:
    return ".".join(path)


LEAVES = dict(leaves(VALUES))


def properties_of(schema: dict[str, Any], under: Path = ()) -> Iterator[Path]:
    """Every path that the schema has properties for, without those of others."""
    while "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    for key, inner in schema.get("properties", {}).items():
        if under or key not in {"global", "stages", "colocated"}:
            yield (*under, key)
            if key not in OF_OTHERS:
                yield from properties_of(inner, (*under, key))


def test_values_and_schema_have_the_same_keys() -> None:
    stated = {path[:end] for path in LEAVES for end in range(1, len(path) + 1)}
    known = set(properties_of(SCHEMA))
    # Keys that users choose, such as names of labels, are properties of no schema.
    free = {("metrics", "dashboard", "labels", "grafana_dashboard")}
    others = {path for path in stated if set(path[:-1]) & set(OF_OTHERS)}
    given = stated - free - others - {("stages",), ("colocated",)}
    assert sorted(map(dotted, given - known)) == [], "are not in values.schema.json"
    inside = {path for path in known if at_or_none(path) is not None or path in stated}
    assert sorted(map(dotted, known - inside)) == [], "are not in values.yaml"


def at_or_none(path: Path) -> Any:
    """The default, or what its parent has if users name its keys (as `tls` of an ingress)."""
    try:
        return at(VALUES, path)
    except KeyError:
        return at(VALUES, path[:-1]) if at(VALUES, path[:-1]) == {} else None


ROWS = [
    (re.findall(r"`([\w.]+)`", cells[1]), line)
    for line in README.splitlines()
    if line.startswith("| `") and len(cells := line.split("|")) > 3
]
ALSO_OF_GATEWAY = README[README.index("The gateway also has the following keys") :].split("\n\n")[0]


def undocumented(path: Path) -> bool:
    """Whether no row of the README names it, or one of its parents and then its last key."""
    for names, line in ROWS:
        for name in names:
            named = tuple(name.split("."))
            if path[: len(named)] != named:
                continue
            rest = path[len(named) :]
            if not rest or set(path) & set(OF_OTHERS) or re.search(rf"\b{rest[-1]}\b", line):
                return False
    if path[0] == "gateway" and path[1] in VALUES["stageDefaults"]:
        placement = {"nodeSelector", "tolerations", "affinity", "runtimeClassName"}
        shared = placement | {"schedulerName", "priorityClassName"}
        if path[1] in shared or f"`{path[1]}`" in ALSO_OF_GATEWAY:
            return undocumented(("stageDefaults", *path[1:]))
    return True


def test_readme_has_a_line_for_every_value() -> None:
    assert [dotted(path) for path in LEAVES if undocumented(path)] == []


CONTAINER = {"image": "busybox", "command": ["true"]}
# Values that marks cannot stand for, and what changes the objects instead.
CHANGES: dict[str, Any] = {
    "images.pullPolicy": "Always",
    "model.source": "emptyDir",
    "model.pipeline": "qwen2_5_omni",
    "model.volume.accessModes": ["ReadWriteOnce"],
    "model.download.timeoutSeconds": 7200,
    "delivery": {"codes": "whole"},
    "discovery": "static",
    "ipFamilyPolicy": "SingleStack",
    "ipFamilies": ["IPv4"],
    "commonLabels": {"cost-center": "other"},
    "stageDefaults.image.pullPolicy": "Always",
    "stageDefaults.autoscaling.target": 0.5,
    "stageDefaults.accelerator.type": "amd",
    "stageDefaults.config": {"slots": 3},
    "stages": {"talker": {"priorityClassName": "high"}},
    "colocated": {"speech": {"stages": ["talker", "code2wav"]}},
    "gateway.image.pullPolicy": "Always",
    "gateway.autoscaling.cpuPercent": 55,
    "gateway.readyOutput": "text",
    "gateway.config": {"queue": {"max_calls": 3}},
    "gateway.service.type": "NodePort",
    "gateway.service.externalTrafficPolicy": "Cluster",
    "gateway.service.loadBalancerSourceRanges": ["192.0.2.0/24"],
    "securityContext.capabilities.drop": ["NET_RAW"],
    "mutualTls.config": {"name": "{role}.other"},
    "mutualTls.certManager.issuerRef": {"name": "other", "kind": "ClusterIssuer"},
}
# The form of a list by its last key; the others are lists of names.
LISTS: Mapping[str, Any] = {
    "env": lambda mark: [{"name": mark.upper(), "value": mark}],
    "envFrom": lambda mark: [{"secretRef": {"name": mark}}],
    "topologySpread": lambda mark: [{"topologyKey": mark}],
    "extraVolumes": lambda mark: [{"name": mark, "emptyDir": {}}],
    "extraVolumeMounts": lambda mark: [{"name": mark, "mountPath": f"/{mark}"}],
    "initContainers": lambda mark: [{"name": mark} | CONTAINER],
    "sidecars": lambda mark: [{"name": mark} | CONTAINER],
    "tolerations": lambda mark: [{"key": mark, "operator": "Exists"}],
    "command": lambda mark: [mark],
    "hostnames": lambda mark: [f"{mark}.example"],
    "tls": lambda mark: [{"hosts": [mark], "secretName": mark}],
    "extraObjects": lambda mark: [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": mark}}
    ],
}


def mark_of(path: Path, default: Any, number: int) -> tuple[Any, str]:
    """A value that occurs nowhere else, and the text that shows it."""
    mark = f"m{number}x"
    last = path[-1]
    if last == "terminationGracePeriodSeconds":
        number += 100_000
    if isinstance(default, int) or default is None:
        return number, rf"\b{number}\b"
    if isinstance(default, list):
        if path[0] == "networkPolicy":
            return [{"podSelector": {"matchLabels": {mark: mark}}}], mark
        made = LISTS.get(last)
        return (made(mark) if made else [{"name": mark}]), mark
    if isinstance(default, dict):
        return {mark: mark}, mark
    if re.fullmatch(r"\d+(m|Mi|Gi)", default):
        unit = default.lstrip("0123456789")
        # Parts of an emptyDir and of requests stay below the memory limits.
        amount = number + 900_000 if path[-2:] == ("limits", "memory") else number
        return f"{amount}{'Mi' if unit != 'm' else 'm'}", rf"\b{amount}"
    if last == "digest":
        return f"sha256:{number:064x}", f"{number:064x}"
    if last == "interval":
        return f"{number}s", f"{number}s"
    if path == ("mutualTls", "secretName"):
        return f"{mark}-{{role}}", mark
    if path[0] == "acceleratorResources":
        return f"example.com/{mark}", mark
    if last == "hostPath":
        return f"/{mark}", mark
    return mark, mark


NO_DOWNLOAD: Values = {"enabled": False}
NO_SCALER: Values = {"autoscaling": {"enabled": False}}


def claimed(kind: str) -> Values:
    """Two stages that share a claim of accelerators."""
    group = {"stages": ["talker", "code2wav"], "accelerators": "claimed"}
    return {"speech": group | {"accelerator": {"type": kind}}}


# With these, each value has a use: what the preset turns on, and values that others hide.
SCENARIOS: tuple[Values, ...] = (
    {"model": {"existingClaim": "", "hostPath": ""}, "stageDefaults": {"modelClaim": ""}},
    {
        "model": {"source": "existingClaim", "hostPath": "", "download": NO_DOWNLOAD},
        "stageDefaults": NO_SCALER | {"modelClaim": "", "serviceAccount": {"create": True}},
        "gateway": NO_SCALER,
        "colocated": claimed("nvidia"),
    },
    {
        "model": {"source": "existingClaim", "hostPath": "", "download": NO_DOWNLOAD},
        "colocated": claimed("amd"),
    },
    {
        "model": {
            "source": "hostPath",
            "existingClaim": "",
            "subPathPerStage": False,
            "download": NO_DOWNLOAD,
        },
        "stageDefaults": {
            "modelClaim": "",
            "image": {"tag": ""},
            "accelerator": {"type": "amd"},
        },
        "gateway": {"image": {"tag": ""}},
    },
)


def scenario(overlay: Values) -> Values:
    values = with_value(preset("everything"), ("images", "registry"), "registry.example")
    for path, value in leaves(overlay):
        values = with_value(values, path, value)
    return values


def text_of(rendered: Rendered) -> str:
    return yaml.safe_dump([*rendered.objects], width=10_000) + rendered.notes


MARKED = {
    path: mark_of(path, default, number)
    for number, (path, default) in zip(itertools.count(20_011, 7), LEAVES.items(), strict=False)
    if not isinstance(default, bool) and dotted(path) not in CHANGES
}


def test_every_value_reaches_the_objects() -> None:
    texts = []
    for overlay in SCENARIOS:
        values = scenario(overlay)
        fixed = {path for path, _ in leaves(overlay)}
        for path, (value, _) in MARKED.items():
            if path not in fixed:
                values = with_value(values, path, value)
        texts.append(text_of(render(values)))
    missing = [
        dotted(path)
        for path, (_, pattern) in MARKED.items()
        if not any(re.search(pattern, text) for text in texts)
    ]
    assert missing == []


SWITCHES = {path: not default for path, default in LEAVES.items() if isinstance(default, bool)}


def changes(values: Values, path: Path, value: Any) -> bool:
    """Whether it makes a difference there, one way or the other. False if the chart rejects it."""
    try:
        after = render(with_value(values, path, value))
        same = with_value(values, path, value) == values
        return after != render(with_value(values, path, not value) if same else values)
    except helm_python.HelmRenderError:
        return False


def test_every_switch_and_choice_changes_the_objects() -> None:
    # An account of this name is expected if the chart does not create it.
    gateway = {"serviceAccount": {"name": "gateways"}}
    usual = scenario({"model": {"subPathPerStage": False}, "gateway": gateway})
    service = {"externalTrafficPolicy": "", "loadBalancerSourceRanges": []}
    alone = scenario(
        {
            "stageDefaults": NO_SCALER | {"image": {"tag": "own"}},
            "gateway": {"service": service},
        }
    )
    choices = {tuple(key.split(".")): value for key, value in CHANGES.items()}
    assert [
        dotted(path)
        for path, value in (SWITCHES | choices).items()
        if not any(changes(values, path, value) for values in (usual, alone))
    ] == []


def test_every_setting_of_the_product_is_a_value_or_the_charts_own() -> None:
    definitions = SCHEMA["definitions"]
    for name, settings in (
        ("gatewayConfig", GatewayConfig),
        ("stageConfig", StageConfig),
        ("mutualTlsConfig", MutualTlsConfig),
    ):
        reached = set(definitions[name]["properties"])
        assert reached == set(settings.__struct_fields__) - DECIDED_BY_CHART
    reached = {"model", "model_name", "pipeline", "stages", "gateway", "mutual_tls", "delivery"}
    assert reached == set(Deployment.__struct_fields__)
    # Of what the chart decides, nothing is left at its default but what it never uses.
    rendered = render(preset("everything")).deployment_file()
    decided = {
        name: value
        for part in (rendered.gateway, *rendered.stages.values())
        for name in DECIDED_BY_CHART & set(part.__struct_fields__)
        if (value := getattr(part, name)) != getattr(type(part)(), name)
    }
    left = DECIDED_BY_CHART - decided.keys() - set(MutualTlsConfig.__struct_fields__)
    assert left == {"addresses", "replicas", "sharing", "tls"}
