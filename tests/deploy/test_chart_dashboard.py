"""The dashboard draws series that the services have, with labels that these have."""

from __future__ import annotations

import json
import re

import pytest_asyncio

from tests.all_series import all_series
from tests.deploy.chart_rendering import CHART, render

DASHBOARD = CHART / "dashboards" / "antiphon.json"
NAME = re.compile(r"antiphon_[a-z0-9_]+")
LABELS = re.compile(r"(?:by|on) \(([^)]*)\)|\{([^}]*)\}")
# What Prometheus adds to a series of every target.
OF_PROMETHEUS = {"instance"}
Samples = dict[str, frozenset[str]]


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


@pytest_asyncio.fixture
async def series() -> Samples:
    """Every sample that a gateway, a stage or a link may have, with its labels."""
    told = (await all_series()).items()
    return {sample: labels for name, each in told for sample, labels in each.samples(name)}


async def test_every_series_of_the_dashboard_is_one_that_is_told(series: Samples) -> None:
    assert {"antiphon_gateway_waiting", "antiphon_stage_slots"} <= series.keys()
    drawn = {name for each in expressions() for name in NAME.findall(each)}
    assert drawn
    assert not drawn - series.keys()


async def test_every_label_of_an_expression_is_one_of_its_series(series: Samples) -> None:
    for expression in expressions():
        known = frozenset[str]().union(*(series[name] for name in NAME.findall(expression)))
        for grouped, matched in LABELS.findall(expression):
            names = {each.strip() for each in grouped.split(",")} - {""}
            names |= set(re.findall(r"([a-z_]+)\s*=", matched))
            assert names <= known | OF_PROMETHEUS, expression


def test_legends_name_labels_by_which_the_series_are_grouped() -> None:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            grouped = set(
                re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"])))
            )
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= grouped


def test_panels_do_not_overlap_and_have_titles_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({each["id"] for each in panels}) == len({each["title"] for each in panels})
    cells = [
        (x, y)
        for each in panels
        for place in [each["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_the_dashboard_is_installed_as_it_is_when_it_is_asked_for() -> None:
    assert len(render().of_kind("ConfigMap")) == 1
    wanted = {"enabled": True, "annotations": {"grafana_folder": "Speech"}}
    rendered = render({"metrics": {"dashboard": wanted}})
    made = rendered.of_kind("ConfigMap")["demo-antiphon-dashboard"]
    assert json.loads(made["data"]["antiphon.json"]) == json.loads(DASHBOARD.read_text())
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert made["metadata"]["annotations"] == {"grafana_folder": "Speech"}
