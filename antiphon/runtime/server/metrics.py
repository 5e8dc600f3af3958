"""Exports the counters of a stage as Prometheus metrics. They are computed on each scrape."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from antiphon.runtime.server.description import StageIdentity
from antiphon.runtime.server.stage import Stage
from antiphon.runtime.session.plan import StagePlan
from antiphon.runtime.session.tally import Histogram, Outcome, Tally
from antiphon.transport.link_metrics import LinkMetrics
from antiphon.version import VERSION

PREFIX = "antiphon_stage_"
READ_TIMEOUT_S = 10.0
"""How long to wait for the event loop, which owns the counters, in seconds."""

_FROM_THE_START = ((Outcome.FINISHED, ""), (Outcome.CANCELLED, ""))
"""The outcomes that are exported with a value of 0 from the start. Failures aren't included,
because their codes aren't known in advance.
"""


class StageMetrics(Collector):
    """All metrics of a stage. Create it on the event loop, but call `collect` from another thread.

    Until `serve` is called, the only metric reports that the stage isn't ready.
    """

    def __init__(self, role: str, device: str, ready: Callable[[], bool]) -> None:
        self._role = role
        self._device = device
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._served: tuple[Stage, StageIdentity, LinkMetrics] | None = None

    def serve(self, stage: Stage, identity: StageIdentity) -> None:
        """Start exporting all metrics, because the model has been loaded."""
        self._served = stage, identity, LinkMetrics(self._role, stage.outgoing_links)

    def collect(self) -> list[Metric]:
        """Return the current metrics. Raises `TimeoutError` if the event loop doesn't respond."""
        reading = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        return reading.result(READ_TIMEOUT_S)

    async def _read(self) -> list[Metric]:
        return list(self._families())

    def _families(self) -> Iterator[Metric]:
        yield _gauge(self._role, "ready", "1 while the stage accepts sessions", self._ready())
        if self._served is None:
            return
        stage, identity, links = self._served
        table = stage.table
        yield InfoMetricFamily(
            PREFIX.removesuffix("_"),
            "Identity of the stage",
            value={
                "stage": self._role,
                "pipeline": identity.pipeline.name,
                "model": identity.model_name or identity.facts.model,
                "engine": identity.facts.engine,
                "device": self._device,
                "version": VERSION,
            },
        )
        gauges = (
            ("slots", "Maximum number of open segments", identity.slots),
            ("open_sessions", "Open sessions", table.session_count),
            ("open_segments", "Slots in use", table.open_segments),
            ("held_segments", "Segments that wait for credit", table.held_segments),
            (
                "held_bytes",
                "Bytes of chunks that arrived before their session was opened",
                table.held_bytes,
            ),
        )
        for name, words, value in gauges:
            yield _gauge(self._role, name, words, value)
        suspensions = _counter(
            "stream_suspensions", "Streams of gateways whose call broke", "outcome"
        )
        for outcome, count in stage.suspensions.items():
            suspensions.add_metric((self._role, outcome), count)
        yield suspensions
        yield from tally_families(stage.plan, table.tally, self._loop.time())
        yield from links.families()


def tally_families(plan: StagePlan, tally: Tally, now: float) -> Iterator[Metric]:
    """Yield the metrics for a stage's tally."""
    role = plan.role
    segments = _counter("segments", "Segments that ended or were refused", "outcome", "code")
    for outcome, code in dict.fromkeys([*_FROM_THE_START, *tally.segments]):
        segments.add_metric((role, outcome.value, code), tally.segments[outcome, code])
    positions = _counter("output_positions", "Positions produced by the engine", "edge")
    chunks = _counter("output_chunks", "Chunks sent with these positions", "edge")
    for edge in plan.outputs:
        positions.add_metric((role, edge), tally.positions[edge])
        chunks.add_metric((role, edge), tally.chunks[edge])
    underruns = _counter(
        "underruns", "Audio chunks sent after all earlier audio had been played", "edge"
    )
    dry = _counter("underrun_seconds", "Time for which no audio was left to play", "edge")
    for edge in plan.rates:
        underruns.add_metric((role, edge), tally.underruns[edge])
        dry.add_metric((role, edge), tally.underrun_s[edge])
    stalls = _counter("credit_stalls", "Times that a segment waited for credit", "edge")
    stalled = _counter("credit_stall_seconds", "Time that segments have waited for credit", "edge")
    for edge in [name for name, each in plan.outputs.items() if each.governed]:
        stalls.add_metric((role, edge), tally.stalls.counts[edge])
        stalled.add_metric((role, edge), tally.stalls.seconds(edge, now))
    refused = _counter("sessions_refused", "Sessions rejected at the limit max_sessions")
    refused.add_metric((role,), tally.sessions_refused)
    yield from (segments, refused, positions, chunks, underruns, dry, stalls, stalled)
    words = "Duration of an engine step, including waits for the engine's own processes"
    yield _histogram(role, "step_seconds", words, tally.step_seconds)
    yield _histogram(role, "step_segments", "Segments in an engine step", tally.step_segments)


def _gauge(role: str, name: str, words: str, value: float) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, words, labels=("stage",))
    family.add_metric((role,), value)
    return family


def _counter(name: str, words: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, words, labels=("stage", *labels))


def _histogram(role: str, name: str, words: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, words, labels=("stage",))
    bounds = [*map(str, histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
    family.add_metric((role,), buckets, histogram.total)
    return family
