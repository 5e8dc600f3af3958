"""`helm upgrade` from the chart of each released minor version."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.deploy.released_charts import RECORDED, RELEASED, faults, recorded


@pytest.mark.parametrize("version", RELEASED)
@pytest.mark.parametrize("name", RECORDED)
def test_release_is_upgraded_with_its_values_when_its_chart_was_an_older_one(
    version: str, name: str
) -> None:
    before = recorded(version)[name]
    assert faults(before.objects, before.rendered_now()) == []


def test_fields_that_cannot_change_and_objects_that_go_are_reported() -> None:
    before = recorded(RELEASED[0])["everything"].objects

    def changed(kind: str, change: Any) -> list[str]:
        after = copy.deepcopy(before)
        change(next(each for each in after if each["kind"] == kind))
        return [fault.partition(": ")[2] for fault in faults(before, after)]

    assert changed("Deployment", lambda o: o["spec"]["selector"]["matchLabels"].clear()) == [
        "spec.selector cannot change"
    ]
    assert changed("Service", lambda o: o["spec"].update(clusterIP="10.0.0.1")) == [
        "spec.clusterIP cannot change"
    ]
    assert changed(
        "PersistentVolumeClaim", lambda o: o["spec"].update(accessModes=["ReadWriteOnce"])
    ) == ["spec.accessModes cannot change"]
    assert changed("RoleBinding", lambda o: o["roleRef"].update(name="other")) == [
        "roleRef cannot change"
    ]
    assert changed("ConfigMap", lambda o: o["metadata"].update(name="other")) == ["is deleted"]
