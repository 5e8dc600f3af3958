"""A run's result: everything that is shown or saved, as one value.

Percentiles are over the requests that succeeded; those that failed count against the
goodput. Times are seconds; those named `at` or `at_s` count from the run's start.
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
    """What became of the requests that were due after the warm-up."""

    due: int
    succeeded: int
    failed: int
    not_sent: int


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """The part of the requests that keep one objective."""

    metric: str
    limit: float
    met: float


@dataclass(frozen=True, slots=True)
class EdgeTotals:
    """What all requests that succeeded moved over an edge."""

    messages: int
    size_bytes: int
    bytes_per_message: float


@dataclass(frozen=True, slots=True)
class StageSummary:
    """A stage's summary of the requests; times are relative to the opening of the segment."""

    times: Mapping[str, Distribution]
    output_positions: int
    output_positions_per_s: float


@dataclass(frozen=True, slots=True)
class ProcessSummary:
    """What a process used. `cpu` is in cores, while requests were due after the warm-up.

    The other figures are from the end of the warm-up to that of the last request;
    `growth_bytes_per_s` is the slope of a line through the memory.
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
    """What a stage still held when the run had ended."""

    sessions: int
    segments: int


@dataclass(frozen=True, slots=True)
class CapacityResult:
    """`load` is requests/s, or sessions; None: even the smallest load was too much.
    `bounded` is False when no load was too much, so the capacity may be larger."""

    unit: str
    load: float | None
    goodput: float
    bounded: bool
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class RequestPoint:
    """One request, for the plots: when it was due, and its metrics."""

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
    """A run's result. `links` are the stages' own counts over the whole run.

    `errors` counts them by kind, and `error_messages` has the words of the first of each.
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
