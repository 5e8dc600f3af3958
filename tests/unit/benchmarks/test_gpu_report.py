from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import thinker_rows
from benchmarks.gpu.report import Figures, Report, Row, mirrored


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


def test_file_is_whole_after_each_row_when_a_run_is_cut(tmp_path: Path) -> None:
    path, clock = tmp_path / "rows.json", Clock()
    report = Report({"torch": "2.11"}, path, 100.0, clock, clock.cpu_s)
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


def test_rows_are_skipped_by_name_when_no_time_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    report = Report({}, None, 10.0, clock, clock.cpu_s)
    report.run(
        [row(clock, "long", 8.0), row(clock, "longer", 1.0, least_s=5.0), row(clock, "short", 2.5)]
    )
    report.run([row(clock, "late", 1.0)])
    assert report.skipped == ["longer", "late"]
    assert report.rows[1]["skipped"] == "2 s of 10 s are left, and it may need 5 s"
    assert report.rows[3]["skipped"] == "0 s of 10 s are left"
    assert report.failed == []
    assert "late: " in capsys.readouterr().out


def test_others_go_on_when_a_row_raises_or_does_not_hold() -> None:
    clock = Clock()

    def broken() -> Figures:
        raise RuntimeError("no kernel")

    report = Report({}, None, 10.0, clock, clock.cpu_s)
    report.run(
        [Row("broken", broken), row(clock, "wrong", 1.0, holds=False), row(clock, "right", 1.0)]
    )
    assert report.failed == ["broken", "wrong"]
    assert report.rows[0]["error"] == "RuntimeError: no kernel"
    assert "broken()" in report.rows[0]["where"] or "in broken" in report.rows[0]["where"]
    assert report.rows[2] == {"name": "right", "cpu_s": 2.0, "took_s": 1.0}


def test_rows_that_are_compared_are_measured_again_in_reversed_order() -> None:
    clock = Clock()
    rows = [row(clock, name, 1.0) for name in ("eager", "graphs", "ahead")]
    report = Report({}, None, 10.0, clock, clock.cpu_s)
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


def test_model_is_gone_before_the_next_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[weakref.ref[Cyclic]] = []
    alive: list[bool] = []

    def make(*args: object) -> Cyclic:
        alive.extend(each() is not None for each in seen)
        model = Cyclic()
        seen.append(weakref.ref(model))
        return model

    monkeypatch.setattr(thinker_rows, "_thinker", make)
    for name in ("_prefill", "_decode"):
        monkeypatch.setattr(
            thinker_rows, name, lambda device, make, *rest: {"made": bool(make(1, 1, rest[0]))}
        )
    gc.disable()
    try:
        for row in thinker_rows.thinker_rows(torch.device("cpu"))[:3]:
            row.measure()
    finally:
        gc.enable()
    assert alive == [False] * 3  # one of the second, two of the third
