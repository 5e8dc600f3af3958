"""The replicas of all stages as Prometheus series, made when somebody asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from antiphon_gateway.fleet.discovery.endpoint import STATES as ENDPOINT_STATES
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.picker import PickReason
from antiphon_gateway.fleet.replica import STATES
from antiphon_gateway.fleet.replicated_stage import ReplicatedStage
from antiphon_gateway.metrics import PREFIX


class FleetMetrics(Collector):
    """Collect on the event loop, which owns the fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        """All series at this moment: of every stage the same, whatever has happened so far."""
        stages = {stage.role: stage for stage in self._fleet}
        told = Counter((each.role, each.state) for each in self._fleet.endpoints)
        yield _gauge(
            "stage_ready",
            "1 when the stage is ready",
            {(role,): stage.ready for role, stage in stages.items()},
            "stage",
        )
        yield _gauge(
            "endpoints",
            "Replicas that discovery tells of",
            {(role, state): told[role, state] for role in stages for state in ENDPOINT_STATES},
            *("role", "state"),
        )
        yield _gauge(
            "discovery_last_sync_seconds",
            "When discovery last told all replicas there are, in Unix seconds; 0: never",
            {(): self._fleet.discovery.last_sync or 0.0},
        )
        states = {role: stage.states for role, stage in stages.items()}
        yield _gauge(
            "replicas",
            "Replicas as this gateway uses them",
            {(role, state): states[role][state] for role in stages for state in STATES},
            *("role", "state"),
        )
        yield from _counters(stages)


def _counters(stages: Mapping[str, ReplicatedStage]) -> Iterator[Metric]:
    yield _counter(
        "picks",
        "Sessions by why they got their replica",
        {
            (role, reason): each.picks[reason]
            for role, each in stages.items()
            for reason in PickReason
        },
        *("role", "reason"),
    )
    yield _counter(
        "ejections",
        "Times that a replica was ejected because its sessions had failed",
        {(role,): each.outliers.ejections for role, each in stages.items()},
        "role",
    )
    yield _counter(
        "drains",
        "Replicas that began to drain",
        {(role,): each.drains for role, each in stages.items()},
        "role",
    )
    yield _counter(
        "stage_refusals",
        "Requests that a replica refused before there was anything of the answer",
        {
            (role, code.value): count
            for role, each in stages.items()
            for code, count in each.refusals.items()
        },
        *("role", "code"),
    )


def _gauge(name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for given, value in values.items():
        family.add_metric(given, value)
    return family


def _counter(name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for given, value in values.items():
        family.add_metric(given, value)
    return family
