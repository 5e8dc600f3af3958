"""What the chart of a released minor version renders: the state that `helm upgrade` begins with.

`python -m tests.deploy.released_charts 0.1` records it in `released/0.1.json`, once for each
release, with the values that it was rendered from.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.chart_rendering import CHART, KubernetesObject, Values, preset, render

FOLDER = Path(__file__).parent / "released"
RELEASED = sorted(path.stem for path in FOLDER.glob("*.json"))
RECORDED = ("default", "everything", "colocated")
"""The presets of the chart that are recorded."""

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


def recorded(version: str) -> dict[str, tuple[Values, list[KubernetesObject]]]:
    """The values and the objects of each preset of that version."""
    content = json.loads((FOLDER / f"{version}.json").read_text())
    return {name: (each["values"], each["objects"]) for name, each in content.items()}


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
    for name in RECORDED:
        values = preset(name)
        text = json.dumps(render(values).objects, sort_keys=True)
        for stated in (chart["appVersion"], chart["version"]):
            text = text.replace(stated, version)
        content[name] = {"values": values, "objects": json.loads(text)}
    written = json.dumps(content, indent=1, sort_keys=True)
    (FOLDER / f"{version}.json").write_text(written + "\n")


if __name__ == "__main__":
    main()
