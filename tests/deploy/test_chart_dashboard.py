"""The dashboard draws series that the services have, with labels that these have."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest_asyncio
from chart_rendering import CHART, render
from prometheus_client import Metric
from prometheus_client.registry import Collector

from antiphon.deployment.schema import GatewayConfig
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.server.description import StageIdentity
from antiphon.runtime.server.link_port import LinkPort
from antiphon.runtime.server.metrics import StageMetrics
from antiphon.testing.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon.testing.qwen3_omni.fake_stages import running_stage
from antiphon.testing.stage_harness import LIMITS, LINKS
from antiphon.transport.link_metrics import LinkMetrics
from antiphon.transport.settings import LinkIdentity
from antiphon.v1 import stage_pb2
from gateway.calls.place import Admission
from gateway.doors.http.endpoint import SharedByDoors
from gateway.metrics import Metrics

DASHBOARD = CHART / "dashboards" / "antiphon.json"
ROLE = "code2wav"
NAME = re.compile(r"antiphon_[a-z0-9_]+")
LABELS = re.compile(r"(?:by|on) \(([^)]*)\)|\{([^}]*)\}")
# What Prometheus adds to a series of every target.
OF_PROMETHEUS = {"instance", "le"}
COUNTS = dict.fromkeys(
    (
        *("chunks.grpc", "bytes.grpc", "fallback.slab_full"),
        *("messages", "message_bytes", "reconnected", "resent"),
    ),
    1,
)
Series = dict[str, set[str]]


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def samples(families: list[Metric]) -> Series:
    return {each.name: set(each.labels) for family in families for each in family.samples}


def of_gateway(registry: Any) -> Series:
    """Also series of which there is no sample yet; their labels are told nowhere else."""
    names: dict[str, Collector] = registry._names_to_collectors
    return {name: {*getattr(each, "_labelnames", ()), "le"} for name, each in names.items()}


@pytest_asyncio.fixture
async def series() -> Series:
    """Every series that a gateway, a stage or a link may have, with its labels."""
    metrics = Metrics(in_flight=lambda: 0)
    Admission(GatewayConfig(), metrics)
    SharedByDoors(GatewayConfig(), metrics).close()
    link = stage_pb2.LinkState(outgoing=True, peer_role="x", transport="grpc", counts=COUNTS)
    async with running_stage(LoadedStage(FakeEngine(), FACTS), ROLE) as running:
        stage = StageMetrics(ROLE, "cpu", lambda: True)
        place = LinkIdentity("host", "boot", ROLE, running.address)
        identity = StageIdentity(PIPELINE, ROLE, FACTS, LIMITS.slots)
        stage.serve(running.stage, identity, LinkPort(running.stage, place, LINKS))
        told = samples(await asyncio.to_thread(stage.collect))
    return (
        of_gateway(metrics.registry) | told | samples(list(LinkMetrics([(ROLE, link)]).collect()))
    )


async def test_every_series_of_the_dashboard_is_one_that_is_told(series: Series) -> None:
    assert {"antiphon_gateway_waiting", "antiphon_stage_slots"} <= series.keys()
    drawn = {name for each in expressions() for name in NAME.findall(each)}
    assert drawn
    assert not drawn - series.keys()


async def test_every_label_of_an_expression_is_one_of_its_series(series: Series) -> None:
    for expression in expressions():
        known = set[str]().union(*(series[name] for name in NAME.findall(expression)))
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
