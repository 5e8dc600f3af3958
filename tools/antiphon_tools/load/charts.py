"""Creates the plots of a result, including their titles and legends.

In plots over time, periods that don't count are shaded. These are the warm-up and the time after
the last request could be due.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from antiphon_tools.load import figures
from antiphon_tools.load.plots import COLOURS, Axis, Point, Series, cumulative, plot
from antiphon_tools.load.processes import ProcessUsage
from antiphon_tools.load.result import CapacityResult, Result

BLUE, RED, GREEN, PINK = 0, 1, 2, 3


def charts(result: Result) -> Iterator[str]:
    """Yield all plots that contain data, as HTML."""
    over_time = _OverTime(result)
    if result.capacity is not None:
        yield _capacity(result.capacity)
    yield over_time(
        "First text, audio and image, by scheduled time of the request",
        "seconds",
        _firsts(result),
        _limits(result, ("ttft", "ttfa", "ttfi")),
    )
    yield _figure(
        "Fraction of requests that were faster",
        Axis("seconds"),
        Axis("part", 1.0),
        [
            Series(name, cumulative(_values(result, name)), colour, "steps")
            for name, colour in (("ttft", BLUE), ("ttfa", GREEN), ("ttfi", PINK))
        ],
    )
    yield over_time(
        "Real-time factor",
        "seconds per second of audio",
        [_dots(result, "rtf", BLUE)],
        _limits(result, ("rtf",)),
    )
    yield over_time(
        "Underrun of a player that starts at the first audio",
        "seconds",
        [_dots(result, "underrun", BLUE)],
        _limits(result, ("underrun",)),
    )
    yield over_time(
        "Open requests", "requests", [Series("open", result.open_counts, BLUE, "steps")]
    )
    for title, unit, points_of in (
        ("Processor", "cores", _cores),
        ("Memory", "MB", _megabytes),
        ("Open files", "descriptors", _descriptors),
    ):
        yield over_time(title, unit, _of_processes(result.usage, points_of))


class _OverTime:
    """Creates plots over the time of a run."""

    def __init__(self, result: Result) -> None:
        self._ends_s = result.warm_up_s + result.measured_s
        self._uncounted = ((0.0, result.warm_up_s), (self._ends_s, math.inf))

    def __call__(
        self,
        title: str,
        unit: str,
        series: Sequence[Series],
        limits: Sequence[tuple[str, float]] = (),
    ) -> str:
        x = Axis("seconds since the start", self._ends_s)
        return _figure(title, x, Axis(unit), series, limits, self._uncounted)


def _firsts(result: Result) -> list[Series]:
    failed = [(point.at_s, 0.0) for point in result.points if point.error]
    return [
        _dots(result, "ttft", BLUE),
        _dots(result, "ttfa", GREEN),
        _dots(result, "ttfi", PINK),
        Series("failed", failed, RED, "dots"),
    ]


def _dots(result: Result, name: str, colour: int) -> Series:
    """Return a metric of each request, by the time when the request was due."""
    points = [(p.at_s, v) for p in result.points if (v := getattr(p, name)) is not None]
    return Series(name, points, colour, "dots")


def _values(result: Result, name: str) -> list[float]:
    """Return a metric of each successful request."""
    made = (getattr(point, name) for point in result.points if not point.error)
    return [value for value in made if value is not None]


def _limits(result: Result, names: Sequence[str]) -> list[tuple[str, float]]:
    """Return the objectives for these metrics, to be drawn as lines."""
    return [
        (f"{each.metric} ≤ {figures.metric(each.metric, each.limit)}", each.limit)
        for each in result.objectives
        if each.metric in names
    ]


def _of_processes(
    usage: Mapping[str, Sequence[ProcessUsage]],
    points_of: Callable[[Sequence[ProcessUsage]], list[Point]],
) -> list[Series]:
    return [
        Series(name, points_of(seen), place) for place, (name, seen) in enumerate(usage.items())
    ]


def _cores(seen: Sequence[ProcessUsage]) -> list[Point]:
    return [(b.at, (b.cpu_s - a.cpu_s) / (b.at - a.at)) for a, b in pairwise(seen) if b.at > a.at]


def _megabytes(seen: Sequence[ProcessUsage]) -> list[Point]:
    return [(each.at, each.memory_bytes / 1e6) for each in seen]


def _descriptors(seen: Sequence[ProcessUsage]) -> list[Point]:
    return [(each.at, each.descriptors) for each in seen]


def _capacity(capacity: CapacityResult) -> str:
    trials = sorted((each.load, each.goodput) for each in capacity.trials)
    series = [Series("trials", trials, BLUE), Series("trials", trials, BLUE, "dots")]
    wanted = [(f"goodput ≥ {figures.percent(capacity.goodput)}", capacity.goodput)]
    return _figure("Goodput by load", Axis(capacity.unit), Axis("goodput", 1.0), series, wanted)


def _figure(
    title: str,
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    limits: Sequence[tuple[str, float]] = (),
    uncounted: Sequence[tuple[float, float]] = (),
) -> str:
    """Return a plot with its title and legend, or an empty string if there is no data."""
    drawn = [each for each in series if each.points]
    if not drawn:
        return ""
    names = {each.name: each.colour % COLOURS for each in drawn}
    legend = "".join(
        f'<span><i class="s{colour}"></i>{html.escape(name)}</span>'
        for name, colour in names.items()
    )
    svg = plot(x, y, drawn, limits=limits, uncounted=uncounted)
    return (
        f"<figure><figcaption>{html.escape(title)}</figcaption>{svg}"
        f'<div class="legend">{legend}</div></figure>'
    )
