"""Computes the result of a run from its observations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from antiphon_tools.load.capacity import CapacitySearch
from antiphon_tools.load.measured import METRICS, NOT_SENT, Measured, StageTimes, Traffic
from antiphon_tools.load.objectives import Objective, good, goodput
from antiphon_tools.load.player import plays_on
from antiphon_tools.load.processes import ProcessUsage
from antiphon_tools.load.result import (
    CapacityResult,
    EdgeTotals,
    LeftOpen,
    ObjectiveResult,
    ProcessSummary,
    RequestCounts,
    RequestPoint,
    Result,
    StageSummary,
)
from antiphon_tools.load.run import LoadRun
from antiphon_tools.load.statistics import distribution, slope

BUFFERS_S = (0.05, 0.1, 0.2)
_STAGE_TIMES = ("first_input_s", "first_output_s", "last_output_s", "busy_s")


@dataclass(frozen=True, slots=True)
class Observed:
    """A run and the observations made during it."""

    run: LoadRun
    usage: Mapping[str, Sequence[ProcessUsage]]
    left_open: Mapping[str, LeftOpen]
    links: Mapping[str, Mapping[str, int]]
    interrupted: bool = False


def summarize(
    observed: Observed,
    *,
    service: str,
    started_at: str,
    settings: Mapping[str, Any],
    objectives: Sequence[Objective],
    capacity: CapacityResult | None = None,
) -> Result:
    """Return the result of a run."""
    run = observed.run
    requests = sorted(run.requests, key=lambda each: each.due_at)
    succeeded = [each for each in requests if not each.error]
    seconds = _measured_s(run, interrupted=observed.interrupted)
    return Result(
        service=service,
        started_at=started_at,
        settings=settings,
        warm_up_s=run.load.warm_up_s,
        measured_s=seconds,
        interrupted=observed.interrupted,
        requests=_counts(requests, len(succeeded)),
        requests_per_s=len(succeeded) / seconds,
        images_per_s=sum(each.images for each in succeeded) / seconds,
        audio_s_per_s=sum(each.audio_s for each in succeeded) / seconds,
        goodput=goodput(requests, objectives),
        good_per_s=sum(good(each, objectives) for each in requests) / seconds,
        objectives=tuple(_objective(each, requests) for each in objectives),
        metrics={name: distribution(_values(succeeded, name)) for name in METRICS},
        gaps=distribution(chain.from_iterable(each.gaps for each in succeeded)),
        continuity=continuity(succeeded),
        sent_late=distribution(each.late_s for each in requests if each.late_s is not None),
        fed_late=distribution(x.fed_late_s for x in requests if x.fed_late_s is not None),
        errors=dict(Counter(each.error for each in requests if each.error).most_common()),
        edges=_edges(each.edges for each in succeeded),
        stages=_stages([each.stages for each in succeeded], seconds),
        processes=_processes(observed),
        links=observed.links,
        error_messages=run.messages,
        left_open=observed.left_open,
        capacity=capacity,
        points=tuple(_point(each, run.started_at) for each in requests),
        open_counts=tuple((at - run.started_at, count) for at, count in run.open_counts),
        usage={name: _since(run.started_at, seen) for name, seen in observed.usage.items()},
    )


def capacity_of(search: CapacitySearch, unit: str) -> CapacityResult:
    """Return the result of a capacity search."""
    return CapacityResult(unit, search.best, search.goodput, search.bounded, tuple(search.trials))


def continuity(requests: Iterable[Measured]) -> dict[str, float]:
    """Return the fraction of audio answers that play without interruption, by buffer size in ms."""
    underruns = [each.underrun for each in requests if each.underrun is not None]
    if not underruns:
        return {}
    return {
        f"{buffer_s * 1000:.0f}": sum(plays_on(each, buffer_s) for each in underruns)
        / len(underruns)
        for buffer_s in BUFFERS_S
    }


def _measured_s(run: LoadRun, *, interrupted: bool) -> float:
    """Return the duration from the end of the warm-up until the last request could be due."""
    ends_at = run.started_at + run.load.ends_s
    if interrupted:
        ends_at = min(ends_at, run.ended_at)
    return max(ends_at - run.measured_from, 1e-9)


def _counts(requests: Sequence[Measured], succeeded: int) -> RequestCounts:
    not_sent = sum(each.error == NOT_SENT for each in requests)
    failed = len(requests) - succeeded - not_sent
    return RequestCounts(len(requests), succeeded, failed, not_sent)


def _objective(objective: Objective, requests: Sequence[Measured]) -> ObjectiveResult:
    met = sum(objective.met_by(each) for each in requests)
    return ObjectiveResult(objective.metric, objective.limit, met / max(len(requests), 1))


def _values(requests: Iterable[Measured], name: str) -> Iterable[float]:
    return (value for each in requests if (value := each.metric(name)) is not None)


def _edges(moved: Iterable[Mapping[str, Traffic]]) -> dict[str, EdgeTotals]:
    totals: dict[str, Traffic] = {}
    for edges in moved:
        for name, traffic in edges.items():
            totals.setdefault(name, Traffic()).add(traffic.size_bytes, traffic.messages)
    return {
        name: EdgeTotals(each.messages, each.size_bytes, each.size_bytes / each.messages)
        for name, each in totals.items()
    }


def _stages(reports: Sequence[Mapping[str, StageTimes]], seconds: float) -> dict[str, StageSummary]:
    """Summarize the reports by role, ordered by when the stages started."""
    roles = dict.fromkeys(chain.from_iterable(reports))
    stages = {
        role: _stage([each[role] for each in reports if role in each], seconds) for role in roles
    }
    return dict(sorted(stages.items(), key=lambda item: item[1].times["first_input_s"].p50))


def _stage(reports: Sequence[StageTimes], seconds: float) -> StageSummary:
    times = {name: distribution(getattr(each, name) for each in reports) for name in _STAGE_TIMES}
    positions = sum(each.output_positions for each in reports)
    return StageSummary(
        times={name: each for name, each in times.items() if each is not None},
        output_positions=positions,
        output_positions_per_s=positions / seconds,
    )


def _processes(observed: Observed) -> dict[str, ProcessSummary]:
    measured_from = observed.run.measured_from
    looks = {
        name: [each for each in seen if each.at >= measured_from]
        for name, seen in observed.usage.items()
    }
    ends_at = observed.run.started_at + observed.run.load.ends_s
    return {name: _process(seen, ends_at) for name, seen in looks.items() if len(seen) > 1}


def _process(seen: Sequence[ProcessUsage], ends_at: float) -> ProcessSummary:
    """Summarize at least two measurements of a process. The load ends before the last one."""
    first, last = seen[0], seen[-1]
    loaded = max((each for each in seen[1:] if each.at <= ends_at), default=last, key=_moment)
    return ProcessSummary(
        cpu=(loaded.cpu_s - first.cpu_s) / (loaded.at - first.at),
        memory_first_bytes=first.memory_bytes,
        memory_last_bytes=last.memory_bytes,
        memory_max_bytes=max(each.memory_bytes for each in seen),
        growth_bytes_per_s=slope([(each.at - first.at, each.memory_bytes) for each in seen]),
        descriptors_first=first.descriptors,
        descriptors_last=last.descriptors,
        threads_max=max(each.threads for each in seen),
    )


def _point(request: Measured, started_at: float) -> RequestPoint:
    return RequestPoint(
        at_s=request.due_at - started_at,
        ttft=request.ttft,
        ttfa=request.ttfa,
        rtf=request.rtf,
        underrun=request.underrun,
        duration=request.duration,
        error=request.error,
        audio_s=request.audio_s,
        ttfi=request.ttfi,
    )


def _since(started_at: float, seen: Iterable[ProcessUsage]) -> tuple[ProcessUsage, ...]:
    return tuple(
        ProcessUsage(
            each.at - started_at, each.cpu_s, each.memory_bytes, each.descriptors, each.threads
        )
        for each in seen
    )


def _moment(usage: ProcessUsage) -> float:
    return usage.at
