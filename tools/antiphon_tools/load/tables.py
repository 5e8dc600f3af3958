"""The tables of a result. They are used both on the terminal and on the HTML page.

Each cell contains the formatted figure and its path in the JSON result, with names separated by
`/`. This makes it possible to check that the displayed values match the saved ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from antiphon_tools.load import figures
from antiphon_tools.load.measured import METRICS
from antiphon_tools.load.result import CapacityResult, Result
from antiphon_tools.load.statistics import ENOUGH_FOR, Distribution

ENOUGH_REQUESTS = 20
"""The minimum number of requests. With fewer requests, a goodput of 95% can't be distinguished from
100%.
"""

PERCENTILES = ("mean", "p50", "p90", "p99", "max")
DASH = "-"
"""This is displayed in place of figures that would be based on too few values."""


_ENOUGH = f"n values; {DASH}: too few values, because " + ", ".join(
    f"p{percent} requires {enough}" for percent, enough in ENOUGH_FOR.items()
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure. `path` and `value` are empty if the cell contains text."""

    text: str
    path: str = ""
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with headings. The first cell of a row is its name."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


def tables(result: Result) -> list[Table]:
    """Return all tables of a result that are not empty."""
    made = (
        _capacity(result.capacity) if result.capacity else None,
        _headline(result),
        _metrics(result),
        _objectives(result),
        _errors(result.errors, result.error_messages),
        _edges(result),
        _links(result),
        _stages(result),
        _processes(result),
        _left_open(result),
    )
    return [table for table in made if table is not None and table.rows]


def _headline(result: Result) -> Table:
    requests = result.requests
    rows = [
        _row("due", ("requests/due", requests.due, figures.count)),
        _row("succeeded", ("requests/succeeded", requests.succeeded, figures.count)),
        _row("failed", ("requests/failed", requests.failed, figures.count)),
        _row(
            "not sent (too many open requests)",
            ("requests/not_sent", requests.not_sent, figures.count),
        ),
        _row("succeeded a second", ("requests_per_s", result.requests_per_s, figures.ratio)),
        _row("goodput", ("goodput", result.goodput, figures.percent)),
        _row("good a second", ("good_per_s", result.good_per_s, figures.ratio)),
        _row("seconds of audio per second", ("audio_s_per_s", result.audio_s_per_s, figures.ratio)),
    ]
    if result.images_per_s:
        rows.append(_row("images a second", ("images_per_s", result.images_per_s, figures.ratio)))
    rows += [
        _row(f"plays on with {buffer} ms", (f"continuity/{buffer}", part, figures.percent))
        for buffer, part in result.continuity.items()
    ]
    return Table("Requests", ("", ""), tuple(rows))


def _metrics(result: Result) -> Table:
    rows = [
        _distribution(name, f"metrics/{name}", each, partial(figures.metric, name))
        for name, each in result.metrics.items()
        if each is not None
    ]
    more = ("gaps", result.gaps), ("sent_late", result.sent_late), ("fed_late", result.fed_late)
    for name, each in more:
        if each is not None:
            rows.append(_distribution(name.replace("_", " "), name, each, figures.seconds))
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in METRICS.items())
    note = (
        f"{meanings}; gaps: all gaps between two pieces; sent late, fed late: the delay of the "
        "load driver itself, for requests and (maximum) for real-time input chunks of a stage."
    )
    return Table("Times", ("", "n", *PERCENTILES), tuple(rows), f"{note} {_ENOUGH}")


def _objectives(result: Result) -> Table:
    rows = [
        _row(
            f"{each.metric} ≤ {figures.metric(each.metric, each.limit)}",
            (f"objectives/{index}/met", each.met, figures.percent),
        )
        for index, each in enumerate(result.objectives)
    ]
    return Table("Objectives", ("", "kept by"), tuple(rows))


def _capacity(capacity: CapacityResult) -> Table:
    rows = [
        (
            Cell(f"{index + 1}"),
            _cell(f"capacity/trials/{index}/load", each.load, figures.ratio),
            _cell(f"capacity/trials/{index}/requests", each.requests, figures.count),
            _cell(f"capacity/trials/{index}/goodput", each.goodput, figures.percent),
            Cell("carried" if each.carried else "too much"),
        )
        for index, each in enumerate(capacity.trials)
    ]
    return Table(
        "Capacity",
        ("trial", capacity.unit, "requests", "goodput", ""),
        tuple(rows),
        capacity_in_words(capacity),
    )


def capacity_in_words(capacity: CapacityResult) -> str:
    """Describe the result of a capacity search in a sentence."""
    asked = f"goodput of at least {figures.percent(capacity.goodput)}"
    if capacity.load is None:
        return f"None of the tested loads had a {asked}."
    found = f"{figures.ratio(capacity.load)} {capacity.unit}"
    if not capacity.bounded:
        return f"{found} had a {asked}. No larger load was tested, so the capacity may be larger."
    doubt = ""
    if min(each.requests for each in capacity.trials) < ENOUGH_REQUESTS:
        doubt = " Some trials had too few requests for a conclusion; use more --seconds."
    return f"{found} is the largest tested load that had a {asked}.{doubt}"


def _errors(errors: Mapping[str, int], messages: Mapping[str, str]) -> Table:
    rows = [
        (*_row(name, (f"errors/{name}", each, figures.count)), Cell(messages.get(name, "")))
        for name, each in errors.items()
    ]
    return Table("Errors", ("", "requests", "first message"), tuple(rows))


def _edges(result: Result) -> Table:
    rows = [
        _row(
            name,
            (f"edges/{name}/messages", each.messages, figures.count),
            (f"edges/{name}/size_bytes", each.size_bytes, figures.size),
            (f"edges/{name}/bytes_per_message", each.bytes_per_message, figures.size),
        )
        for name, each in result.edges.items()
    ]
    return Table("Edges", ("", "messages", "bytes", "bytes a message"), tuple(rows))


def _links(result: Result) -> Table:
    rows = [
        _row(f"{name}, {kind}", (f"links/{name}/{kind}", count, _count_of(kind)))
        for name, counts in result.links.items()
        for kind, count in counts.items()
    ]
    note = "The stages' own counters over the whole run, including the warm-up."
    return Table("Links between stages", ("", "count"), tuple(rows), note)


def _count_of(kind: str) -> Callable[[float], str]:
    """Return the function that formats a count of a link."""
    return figures.size if kind.startswith("bytes") else figures.count


def _stages(result: Result) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for role, stage in result.stages.items():
        place = f"stages/{role}"
        made = _cell(f"{place}/output_positions_per_s", stage.output_positions_per_s, figures.count)
        for name, each in stage.times.items():
            words = f"{role}, {name.removesuffix('_s').replace('_', ' ')}"
            rows.append(_distribution(words, f"{place}/times/{name}", each, figures.seconds))
        rows.append(
            (Cell(f"{role}, generated positions per second"), Cell(""), made, *[Cell("")] * 4)
        )
    note = "Seconds since the stage opened the segment; busy: the time that its engine spent on it."
    return Table(
        "Stages, according to their own reports", ("", "n", *PERCENTILES), tuple(rows), note
    )


def _processes(result: Result) -> Table:
    rows = [
        _row(
            name,
            (f"processes/{name}/cpu", each.cpu, figures.ratio),
            (f"processes/{name}/memory_first_bytes", each.memory_first_bytes, figures.size),
            (f"processes/{name}/memory_last_bytes", each.memory_last_bytes, figures.size),
            (f"processes/{name}/memory_max_bytes", each.memory_max_bytes, figures.size),
            (f"processes/{name}/growth_bytes_per_s", each.growth_bytes_per_s, figures.size),
            (f"processes/{name}/descriptors_first", each.descriptors_first, figures.count),
            (f"processes/{name}/descriptors_last", each.descriptors_last, figures.count),
            (f"processes/{name}/threads_max", each.threads_max, figures.count),
        )
        for name, each in result.processes.items()
    ]
    headings = ("", "cores", "memory, first", "last", "most", "growth a second")
    return Table("Processes", (*headings, "files, first", "last", "threads"), tuple(rows))


def _left_open(result: Result) -> Table:
    rows = [
        _row(
            role,
            (f"left_open/{role}/sessions", each.sessions, figures.count),
            (f"left_open/{role}/segments", each.segments, figures.count),
        )
        for role, each in result.left_open.items()
    ]
    return Table("Still open after the run", ("", "sessions", "segments"), tuple(rows))


def _distribution(
    name: str, path: str, each: Distribution, write: Callable[[float], str]
) -> tuple[Cell, ...]:
    figures_of = ((f"{path}/{part}", getattr(each, part), write) for part in PERCENTILES)
    return _row(name, (f"{path}/count", each.count, figures.count), *figures_of)


def _row(name: str, *cells: tuple[str, float | None, Callable[[float], str]]) -> tuple[Cell, ...]:
    return (Cell(name), *(_cell(*cell) for cell in cells))


def _cell(path: str, value: float | None, write: Callable[[float], str]) -> Cell:
    return Cell(DASH) if value is None else Cell(write(value), path, value)


def lines(table: Table) -> Iterator[str]:
    """Yield the lines of a table for the terminal. Each column is as wide as its widest cell."""
    rows = [table.headings, *([cell.text for cell in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield table.title
    for row in rows:
        if any(row):
            yield "  " + "  ".join(_aligned(row, widths)).rstrip()


def _aligned(row: Iterable[str], widths: Iterable[int]) -> Iterator[str]:
    """Yield the cells of a row. The first column is left-aligned, and the others are
    right-aligned.
    """
    for index, (text, width) in enumerate(zip(row, widths, strict=True)):
        yield f"{text:<{width}}" if index == 0 else f"{text:>{width}}"
