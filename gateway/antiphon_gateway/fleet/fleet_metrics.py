"""Prometheus metrics for all replicas. They are computed on each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from antiphon_gateway.fleet.discovery.replica_endpoint import STATES as ENDPOINT_STATES
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.picker import PickReason
from antiphon_gateway.fleet.replica import STATES
from antiphon_gateway.fleet.replicated_stage import ReplicatedStage
from antiphon_gateway.metrics import PREFIX


class FleetMetrics(Collector):
    """Collects metrics from a fleet. It must be called on the event loop that owns the fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        """Return all current metrics. Every stage has the same series, including those for events
        that haven't occurred yet.
        """
        stages = {stage.role: stage for stage in self._fleet}
        told = Counter((each.role, each.state) for each in self._fleet.endpoints)
        yield _gauge(
            "stage_ready",
            "1 if at least one replica of the stage accepts sessions",
            {(role,): stage.ready for role, stage in stages.items()},
            "stage",
        )
        yield _gauge(
            "endpoints",
            "Replicas by discovery state",
            {(role, state): told[role, state] for role in stages for state in ENDPOINT_STATES},
            *("role", "state"),
        )
        yield _gauge(
            "discovery_last_sync_seconds",
            "Unix time of the last complete list from discovery, or 0 if there was none yet",
            {(): self._fleet.discovery.last_sync or 0.0},
        )
        states = {role: stage.states for role, stage in stages.items()}
        yield _gauge(
            "replicas",
            "Replicas by state as seen by this gateway",
            {(role, state): states[role][state] for role in stages for state in STATES},
            *("role", "state"),
        )
        yield from _counters(stages)


def _counters(stages: Mapping[str, ReplicatedStage]) -> Iterator[Metric]:
    yield _counter(
        "picks",
        "Replica selections by reason",
        {
            (role, reason): each.picks[reason]
            for role, each in stages.items()
            for reason in PickReason
        },
        *("role", "reason"),
    )
    yield _counter(
        "ejections",
        "Ejections of replicas because of failed sessions",
        {(role,): each.outliers.ejections for role, each in stages.items()},
        "role",
    )
    yield _counter(
        "drains",
        "Replicas that started draining",
        {(role,): each.drains for role, each in stages.items()},
        "role",
    )
    yield _counter(
        "stage_refusals",
        "Requests that a replica rejected before any output",
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
