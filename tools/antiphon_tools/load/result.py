"""The result of a run, which contains all data that is displayed or saved.

Percentiles are computed from successful requests. Failed requests reduce the goodput. Times are in
seconds. Times named `at` or `at_s` are relative to the start of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from antiphon_tools.load.capacity import Trial
from antiphon_tools.load.processes import ProcessUsage
from antiphon_tools.load.statistics import Distribution


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """The outcomes of the requests that were due after the warm-up."""

    due: int
    succeeded: int
    failed: int
    not_sent: int


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """The fraction of requests that met an objective."""

    metric: str
    limit: float
    met: float


@dataclass(frozen=True, slots=True)
class EdgeTotals:
    """The traffic of all successful requests on an edge."""

    messages: int
    size_bytes: int
    bytes_per_message: float


@dataclass(frozen=True, slots=True)
class StageSummary:
    """A stage's summary of the requests. Times are relative to the opening of the segment."""

    times: Mapping[str, Distribution]
    output_positions: int
    output_positions_per_s: float


@dataclass(frozen=True, slots=True)
class ProcessSummary:
    """The resource usage of a process.

    `cpu` is the average number of cores, measured from the end of the warm-up until the last
    request could be due. The other values are measured until the end of the last request.
    `growth_bytes_per_s` is the slope of a line fitted to the memory usage.
    """

    cpu: float
    memory_first_bytes: int
    memory_last_bytes: int
    memory_max_bytes: int
    growth_bytes_per_s: float
    descriptors_first: int
    descriptors_last: int
    threads_max: int


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """The sessions and segments that a stage still held after the run."""

    sessions: int
    segments: int


@dataclass(frozen=True, slots=True)
class CapacityResult:
    """The result of a capacity search.

    `load` is in requests per second or in sessions. It is None if even the smallest load could not
    be sustained. `bounded` is False if every load was sustained, in which case the capacity may be
    larger.
    """

    unit: str
    load: float | None
    goodput: float
    bounded: bool
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class RequestPoint:
    """A request in the plots: the time when it was due, and its metrics."""

    at_s: float
    ttft: float | None
    ttfa: float | None
    rtf: float | None
    underrun: float | None
    duration: float
    error: str
    audio_s: float = 0.0
    ttfi: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run. `links` contains the stages' own counts over the complete run.

    `errors` contains the number of errors of each kind. `error_messages` contains the message of
    the first error of each kind.
    """

    service: str
    started_at: str
    settings: Mapping[str, Any]
    warm_up_s: float
    measured_s: float
    interrupted: bool
    requests: RequestCounts
    requests_per_s: float
    audio_s_per_s: float
    goodput: float
    good_per_s: float
    objectives: tuple[ObjectiveResult, ...]
    metrics: Mapping[str, Distribution | None]
    gaps: Distribution | None
    continuity: Mapping[str, float]
    sent_late: Distribution | None
    fed_late: Distribution | None
    errors: Mapping[str, int]
    edges: Mapping[str, EdgeTotals]
    stages: Mapping[str, StageSummary]
    processes: Mapping[str, ProcessSummary]
    links: Mapping[str, Mapping[str, int]]
    left_open: Mapping[str, LeftOpen]
    error_messages: Mapping[str, str] = field(default_factory=dict)
    capacity: CapacityResult | None = None
    points: tuple[RequestPoint, ...] = ()
    open_counts: tuple[tuple[float, int], ...] = ()
    usage: Mapping[str, tuple[ProcessUsage, ...]] = field(default_factory=dict)
    images_per_s: float = 0.0
