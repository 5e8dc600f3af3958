"""What the chart of a released minor version renders: the state that `helm upgrade` begins with.

`python -m tests.deploy.released_charts 0.1` records it in `released/0.1.json`, once for each
release, with the values that it was rendered from.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.bell_fleet import RELEASE, values_of
from tests.deploy.chart_rendering import CHART, KubernetesObject, Values, preset, render

FOLDER = Path(__file__).parent / "released"
RELEASED = sorted(path.stem for path in FOLDER.glob("*.json"))
BELLS = "bells"
"""The release of tests/cluster, whose pods can run as processes."""


def values_by_name() -> dict[str, Values]:
    """What is recorded: presets of the chart, and the values of `BELLS`."""
    presets = {name: preset(name) for name in ("default", "everything", "colocated")}
    return presets | {BELLS: values_of({"gateway": 2, "composer": 2, "ringer": 2}, slots=4)}


RECORDED = tuple(values_by_name())


@dataclass(frozen=True)
class Recording:
    """What a chart of a released version has rendered from these values."""

    values: Values
    objects: list[KubernetesObject]

    def rendered_now(self) -> list[KubernetesObject]:
        """What this chart renders from the same values."""
        return list(render(self.values, release=RELEASE).objects)


# Kubernetes rejects a change of these fields. Helm never replaces an object for one.
IMMUTABLE = {
    "Deployment": ("spec.selector",),
    "Service": ("spec.clusterIP",),
    "PersistentVolumeClaim": (
        "spec.accessModes",
        "spec.storageClassName",
        "spec.volumeMode",
    ),
    "RoleBinding": ("roleRef",),
}


def recorded(version: str) -> dict[str, Recording]:
    """The recordings of that version by name."""
    content = json.loads((FOLDER / f"{version}.json").read_text())
    return {name: Recording(**each) for name, each in content.items()}


def faults(before: list[KubernetesObject], after: list[KubernetesObject]) -> list[str]:
    """Why an upgrade from one to the other would fail, or would delete an object."""
    now = {(each["kind"], each["metadata"]["name"]): each for each in after}
    found = []
    for each in before:
        kind, name = key = (each["kind"], each["metadata"]["name"])
        if key not in now:
            found.append(f"{kind} {name}: is deleted")
            continue
        found += [
            f"{kind} {name}: {path} cannot change"
            for path in IMMUTABLE.get(kind, ())
            if _field(each, path) != _field(now[key], path)
        ]
    return found


def _field(content: Any, path: str) -> Any:
    for name in path.split("."):
        content = content.get(name) if isinstance(content, dict) else None
    return content


def main() -> None:
    """Record the chart of this checkout as that of a minor version."""
    version = sys.argv[1]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    content = {}
    for name, values in values_by_name().items():
        text = json.dumps(render(values, release=RELEASE).objects, sort_keys=True)
        for stated in (chart["appVersion"], chart["version"]):
            text = text.replace(stated, version)
        content[name] = {"values": values, "objects": json.loads(text)}
    written = json.dumps(content, indent=1, sort_keys=True)
    (FOLDER / f"{version}.json").write_text(written + "\n")


if __name__ == "__main__":
    main()
