"""A result as a page and as tables: what is shown is what is saved."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from antiphon.errors import Unavailable
from antiphon.v1 import stage_pb2
from antiphon_tools.load.capacity import CapacitySearch
from antiphon_tools.load.machine import commit, machine
from antiphon_tools.load.measured import StageTimes, Trace
from antiphon_tools.load.objectives import Objective
from antiphon_tools.load.page import page
from antiphon_tools.load.plots import Axis, Series, cumulative, plot, thinned, ticks
from antiphon_tools.load.processes import usage_of, watching
from antiphon_tools.load.result import LeftOpen, Result
from antiphon_tools.load.run import Load, run_load
from antiphon_tools.load.stage_states import left_open, link_counts
from antiphon_tools.load.summary import Observed, capacity_of, summarize
from antiphon_tools.load.tables import capacity_in_words, lines, tables

FAILS = "unavailable (stage talker)"
STAGE_TIMES = StageTimes(0.001, 0.02, 0.4, 0.3, 10, 20)


class SpeakingDriver:
    """Every third request fails, the others are audio that comes at known times."""

    async def ask(self, trace: Trace) -> None:
        await asyncio.sleep(0)
        if trace.number % 3 == 2:
            raise Unavailable("gone <&>", stage="talker")
        due = trace.due_at
        trace.texts.append(due + 0.1)
        trace.audio += [(due + 0.2, 0.5), (due + 0.85, 0.5)]
        trace.moved("audio", 1000)
        trace.stages["talker"] = STAGE_TIMES


@pytest.fixture
async def result() -> Result:
    load = Load(rate=100, sessions=None, seconds=0.4, warm_up_s=0.1)
    async with watching({"me": os.getpid(), "gone": 2**30}, 0.02) as watch:
        run = await run_load(load, SpeakingDriver())
    search = CapacitySearch(4, max_trials=2)
    search.record(4, 100, 1.0)
    search.record(8, 100, 0.5)
    return summarize(
        Observed(
            run, watch.seen, {"talker": LeftOpen(0, 1)}, {"talker → code2wav": {"chunks.grpc": 7}}
        ),
        service="gateway",
        started_at="2030-01-01T00:00:00+00:00",
        settings={"model": "<tiny>"},
        objectives=(Objective("ttfa", 0.3), Objective("underrun", 0.1)),
        capacity=capacity_of(search, "requests/s"),
    )


class Figures(HTMLParser):
    """Collects `<data>` elements, and whether the page would fetch or run anything."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, float, str]] = []
        self.outside: list[str] = []
        self._open: tuple[str, float] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "link", "img", "iframe", "object") or {"src", "href"} & set(given):
            self.outside.append(tag)
        if tag == "data":
            self._open = str(given["data-path"]), float(str(given["value"]))

    def handle_data(self, data: str) -> None:
        if self._open:
            self.found.append((*self._open, data))
            self._open = None


def at(saved: Any, path: str) -> Any:
    """The value at a path of the JSON."""
    for name in path.split("/"):
        saved = saved[int(name)] if isinstance(saved, list) else saved[name]
    return saved


def test_page_shows_the_figures_of_the_json(result: Result) -> None:
    saved = json.loads(msgspec.json.encode(result))
    figures = Figures()
    figures.feed(page(result))
    assert len(figures.found) > 80
    for path, value, _ in figures.found:
        assert value == at(saved, path), path


def test_page_and_terminal_show_the_same(result: Result) -> None:
    figures = Figures()
    figures.feed(page(result))
    shown = {path: text for path, _, text in figures.found}
    for table in tables(result):
        printed = "\n".join(lines(table))
        for row in table.rows:
            for cell in row:
                assert cell.text in printed
                if cell.path:
                    assert shown[cell.path] == cell.text


def test_percentile_of_too_few_requests_is_a_dash_beside_their_number(result: Result) -> None:
    ttfa = result.metrics["ttfa"]
    assert ttfa
    assert 10 <= ttfa.count < 100
    (times,) = (table for table in tables(result) if table.title == "Times")
    (row,) = (row for row in times.rows if row[0].text == "ttfa")
    assert times.headings == ("", "n", "mean", "p50", "p90", "p99", "max")
    assert [cell.text for cell in row][1] == str(ttfa.count)
    assert [cell.text for cell in row][5] == "-"
    assert "p99 requires 100" in times.note
    assert f"<b>-</b><span>ttfa p99, n = {ttfa.count}</span>" in page(result)


def test_page_is_alone_and_its_plots_are_well_formed(result: Result) -> None:
    text = page(result)
    figures = Figures()
    figures.feed(text)
    assert figures.outside == []
    assert "http" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    assert "url(" not in text
    plots = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(plots) == 9
    for each in plots:
        ElementTree.fromstring(each)
    assert "&lt;tiny&gt;" in text


def test_result_counts_what_came_of_the_requests(result: Result) -> None:
    requests = result.requests
    assert requests.due == requests.succeeded + requests.failed
    assert result.errors == {FAILS: requests.failed}
    assert result.error_messages == {FAILS: "gone <&>"}
    assert "gone &lt;&amp;&gt;" in page(result)
    assert result.metrics["ttfa"]
    assert result.metrics["ttfa"].count == requests.succeeded
    assert result.metrics["ttfa"].p90 == pytest.approx(0.2)
    assert result.metrics["rtf"]
    assert result.metrics["rtf"].p50 == pytest.approx(0.85)
    assert result.continuity == {"50": 0.0, "100": 0.0, "200": 1.0}
    assert [each.met for each in result.objectives] == [requests.succeeded / requests.due, 0.0]
    assert result.goodput == result.good_per_s == 0.0
    assert result.requests_per_s == pytest.approx(requests.succeeded / 0.4)
    assert result.audio_s_per_s == pytest.approx(requests.succeeded / 0.4)
    assert result.edges["audio"].messages == requests.succeeded
    assert result.edges["audio"].bytes_per_message == 1000
    assert result.stages["talker"].output_positions == 20 * requests.succeeded


def test_processes_that_are_there_are_summed_up(result: Result) -> None:
    assert set(result.processes) == {"me"}
    mine = result.processes["me"]
    assert mine.memory_max_bytes >= mine.memory_first_bytes > 10_000_000
    assert mine.descriptors_first > 2
    assert 0 <= mine.cpu < (os.cpu_count() or 1) + 1
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the system
        usage_of(2**30, 0.0)


def test_machine_names_the_commit_of_the_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(machine()) == {"antiphon", "commit", "machine"}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "services" / "antiphon_services").mkdir(parents=True)
    (tmp_path / "gateway" / "antiphon_gateway").mkdir(parents=True)
    assert commit() == "unknown: not in a checkout"
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")
    for step in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run([*git, *step], check=True)
    clean = commit()
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (tmp_path / "new").write_text("")
    assert commit() == f"{clean}+"


def test_capacity_in_words_says_what_is_not_known() -> None:
    def words(*trials: tuple[float, int, float]) -> str:
        search = CapacitySearch(4)
        for trial in trials:
            search.record(*trial)
        return capacity_in_words(capacity_of(search, "sessions"))

    assert "may be larger" in words((4, 50, 1.0))
    assert words((4, 50, 1.0), (8, 50, 0.1)).startswith("4 sessions is the largest")
    assert "too few" not in words((4, 50, 1.0), (8, 50, 0.1))
    assert "too few requests for a conclusion" in words((4, 19, 1.0), (8, 50, 0.1))
    assert words((4, 50, 0.2)).startswith("None of the tested loads")


def stage(open_sessions: int, **chunks: int) -> stage_pb2.DescribeResponse:
    """A stage that has one link out, with these counts, and one in."""
    outgoing = stage_pb2.LinkState(peer_address="h:2", outgoing=True, counts=chunks)
    incoming = stage_pb2.LinkState(peer_role="thinker", counts={"chunks": 1000})
    return stage_pb2.DescribeResponse(open_sessions=open_sessions, links=[outgoing, incoming])


def test_links_count_what_was_added_since_the_run_began() -> None:
    before, after = {"talker": stage(0, chunks=5, lost=2)}, {"talker": stage(3, chunks=9, lost=2)}
    addresses = {"talker": "h:1", "code2wav": "h:2"}
    assert link_counts(addresses, before, after) == {"talker → code2wav": {"chunks": 4}}
    assert link_counts({}, {}, before) == {"talker → h:2": {"chunks": 5, "lost": 2}}
    assert link_counts(addresses, after, after) == {}
    assert left_open(after) == {"talker": LeftOpen(3, 0)}


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (7, [0, 2, 4, 6]),
        (0.011, [0, 0.0025, 0.005, 0.0075, 0.01]),
    ],
)
def test_ticks_are_round(top: float, expected: list[float]) -> None:
    assert ticks(top) == pytest.approx(expected)


def test_thinned_points_keep_the_peak() -> None:
    points = [(float(x), 1.0 if x == 7777 else 0.0) for x in range(10_000)]
    thin = thinned(points, 600)
    assert len(thin) <= 600
    assert max(thin, key=lambda point: point[1]) == (7777.0, 1.0)
    assert thinned(points[:5], 600) == points[:5]


def test_cumulative_reaches_one_at_the_largest_value() -> None:
    assert cumulative([3, 1]) == [(1, 0.5), (3, 1.0)]


@pytest.mark.parametrize("points", [[], [(0.0, 0.0)], [(0.0, 0.0), (5.0, 0.0)]])
def test_plot_of_little_or_nothing_is_still_a_plot(points: list[tuple[float, float]]) -> None:
    svg = ElementTree.fromstring(plot(Axis("x"), Axis("y"), [Series("a", points)]))
    assert svg.tag == "svg"
    assert "nan" not in ElementTree.tostring(svg, encoding="unicode")
