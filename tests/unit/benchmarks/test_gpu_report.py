from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import loaded
from benchmarks.gpu.loaded import FreshLengths, Stages, on_new_thread
from benchmarks.gpu.report import CUT, Figures, Report, Row, measured_rows, mirrored
from benchmarks.gpu.scale import EAGER


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def cpu_s(self) -> float:
        """Two cores are busy all the time."""
        return 2 * self.now_s


def row(clock: Clock, name: str, took_s: float, least_s: float = 0.0, **figures: Any) -> Row:
    def measure() -> Figures:
        clock.now_s += took_s
        return figures

    return Row(name, measure, least_s)


def report_of(
    clock: Clock, path: Path | None = None, budget_s: float = 10.0, facts: Figures | None = None
) -> Report:
    again = ["python", "-m", "benchmarks.gpu", "engines", "--json", "a file"]
    return Report(facts or {}, path, budget_s, again=again, clock=clock, cpu_clock=clock.cpu_s)


def test_file_is_whole_after_each_row_when_a_run_is_cut(tmp_path: Path) -> None:
    path, clock = tmp_path / "rows.json", Clock()
    report = report_of(clock, path, 100.0, {"torch": "2.11"})
    seen: list[list[str]] = []

    def look() -> Figures:
        seen.append([each["name"] for each in json.loads(path.read_text())["rows"]])
        return {}

    report.run([row(clock, "one", 1.0, ms=3), Row("two", look)])
    assert seen == [["one"]]
    written = json.loads(path.read_text())
    assert written["torch"] == "2.11"
    assert written["rows"][0] == {"name": "one", "cpu_s": 2.0, "ms": 3, "took_s": 1.0}
    assert list(written["rows"][0])[1] == "cpu_s"


def test_rows_are_left_out_by_name_with_their_command_when_no_time_is_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    report = report_of(clock)
    report.run(
        [row(clock, "long", 8.0), row(clock, "longer", 1.0, least_s=5.0), row(clock, "short", 2.5)]
    )
    report.run([row(clock, "late", 1.0)])
    assert report.left_out == ["longer", "late"]
    assert report.rows[1]["left_out"] == "2 s of 10 s remain, and it may need 5 s"
    assert report.rows[3]["left_out"] == "0 s of 10 s remain"
    assert report.rows[3]["run"] == "python -m benchmarks.gpu engines --json 'a file'"
    assert report.failed == []
    # Each row is a line of JSON.
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["name"] for each in printed] == ["long", "longer", "short", "late"]


def test_others_go_on_when_a_row_raises_or_does_not_hold() -> None:
    clock = Clock()

    def broken() -> Figures:
        raise RuntimeError("can't compile a kernel")

    report = report_of(clock)
    report.run(
        [Row("broken", broken), row(clock, "wrong", 1.0, holds=False), row(clock, "right", 1.0)]
    )
    assert report.failed == ["broken", "wrong"]
    assert report.rows[0]["error"] == "RuntimeError: can't compile a kernel"
    assert "broken()" in report.rows[0]["where"] or "in broken" in report.rows[0]["where"]
    assert report.rows[2] == {"name": "right", "cpu_s": 2.0, "took_s": 1.0}


def test_only_what_was_not_measured_is_measured_when_a_file_is_there(tmp_path: Path) -> None:
    path, clock = tmp_path / "rows.json", Clock()

    def broken() -> Figures:
        raise RuntimeError("can't compile a kernel")

    report = report_of(clock, path)
    report.run([row(clock, "setup", 1.0), row(clock, "one", 1.0), Row("two", broken)])
    report.run([row(clock, "three", 1.0, least_s=9.0)])
    assert report.left_out == ["three"]
    later = Report({}, path, 10.0, measured=measured_rows(path), clock=clock, cpu_clock=clock.cpu_s)
    rows = [
        Row("setup", lambda: {"again": True}, setup=True),
        *(row(clock, name, 1.0) for name in ("one", "two", "three")),
    ]
    later.run(rows)
    assert later.failed == later.left_out == []
    assert [each["name"] for each in later.rows] == ["one", "setup", "two", "three"]
    assert clock.now_s == 4.0
    assert measured_rows(tmp_path / "none.json") == []


HANGS = """
import json, sys, threading
from pathlib import Path
from benchmarks.gpu.report import Report, Row

report = Report({}, Path(sys.argv[1]), 0.5)
with report.ends_within(0.1):
    report.run([Row("hangs", threading.Event().wait), Row("later", dict)])
"""


def test_call_ends_and_names_the_row_when_one_hangs(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    ran = subprocess.run(
        [sys.executable, "-c", HANGS, str(path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == CUT, ran.stderr
    assert "wait" in ran.stderr
    hangs, later = json.loads(path.read_text())["rows"]
    assert hangs == {"name": "hangs", "error": "did not end within the budget of 0 s"}
    assert later["left_out"].startswith("0 s of 0 s remain")


def test_rows_that_are_compared_are_measured_again_in_reversed_order() -> None:
    clock = Clock()
    rows = [row(clock, name, 1.0) for name in ("eager", "graphs", "ahead")]
    report = report_of(clock)
    report.run(mirrored(rows))
    assert [each["name"] for each in report.rows] == [
        "eager",
        "graphs",
        "ahead",
        "ahead, again",
        "graphs, again",
        "eager, again",
    ]
    assert mirrored(rows[:1]) == rows[:1]


class Cyclic(torch.nn.Module):
    """A model in a reference cycle, as one with graphs is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))
        self.forwards = [self.forward]


def test_stage_is_gone_before_the_next_one_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[weakref.ref[Cyclic]] = []
    alive: list[bool] = []

    def load(*_: object) -> Cyclic:
        alive.extend(each() is not None for each in seen)
        model = Cyclic()
        seen.append(weakref.ref(model))
        return model

    monkeypatch.setattr(loaded, "load_random", load)
    stages = Stages(torch.device("cpu"), tmp_path)
    gc.disable()
    try:
        for role in ("talker", "talker", "thinker", "code2wav"):
            stages.load(role, EAGER, slots=2, context=64)
        stages.forget()
        alive.extend(each() is not None for each in seen)
    finally:
        gc.enable()
    # Rows that follow each other and ask for the same stage share it.
    assert len(seen) == 3
    assert alive == [False] * (1 + 2 + 3)


def test_no_length_is_measured_twice() -> None:
    lengths = FreshLengths((48, 300, 49))
    taken = [*lengths.take(1), *lengths.take(5), *lengths.take(3)]
    assert taken == [48, 49, 300, 50, 51, 301, 52, 302, 53]


def test_what_runs_on_a_new_thread_returns_or_raises_here() -> None:
    threads = [on_new_thread(threading.get_ident) for _ in range(2)]
    assert threading.get_ident() not in threads
    with pytest.raises(ZeroDivisionError):
        on_new_thread(lambda: 1 // 0)
