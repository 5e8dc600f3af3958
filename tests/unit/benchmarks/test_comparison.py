from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import (
    cpu_s_of,
    descendants,
    own_and_cpu_s_of,
    process_cpu_s,
    tree_cpu_s,
)
from benchmarks.comparison.rounds import Comparison, Figures, Side, in_order, spread


class Sides:
    """Sides that note when they are measured, with the CPU times that they are given."""

    def __init__(self, **cpu_ms: list[float]) -> None:
        self.measured: list[str] = []
        self.shown: list[str] = []
        self._cpu_ms = cpu_ms

    def side(self, name: str, *against: str) -> Side:
        def measure() -> Figures:
            self.measured.append(name)
            self.shown.append(f"{name} measured")
            return {"CPU, ms": self._cpu_ms[name].pop(0), "time, ms": 5.0}

        return Side(name, measure, against)


@pytest.mark.parametrize(
    ("rounds", "wanted"), [(1, "AB"), (2, "ABBA"), (3, "ABBAAB"), (4, "ABBAABBA")]
)
def test_every_other_round_is_in_reversed_order(rounds: int, wanted: str) -> None:
    sides = Sides(A=[1.0] * 4, B=[1.0] * 4)
    comparison = Comparison([sides.side("A"), sides.side("B", "A")], show=sides.shown.append)
    asyncio.run(comparison.run(rounds, warm_up=0))
    assert "".join(sides.measured) == wanted


def test_three_sides_are_reversed_too_and_each_is_first_as_often() -> None:
    assert [in_order("ABC", number) for number in range(4)] == ["ABC", "CBA", "ABC", "CBA"]


def test_each_measurement_is_shown_before_the_next_begins() -> None:
    sides = Sides(A=[3.0, 30.0], B=[4.0, 40.0])
    comparison = Comparison([sides.side("A"), sides.side("B", "A")], show=sides.shown.append)
    asyncio.run(comparison.run(1, warm_up=1))
    assert sides.shown == [
        "B measured",
        "warm-up: B: CPU, ms: 4.00, time, ms: 5.00",
        "A measured",
        "warm-up: A: CPU, ms: 3.00, time, ms: 5.00",
        "A measured",
        "round 1 of 1: A: CPU, ms: 30.0, time, ms: 5.00",
        "B measured",
        "round 1 of 1: B: CPU, ms: 40.0, time, ms: 5.00",
    ]


def test_report_has_cpu_first_and_names_the_side_that_it_divides_by() -> None:
    # Paired rounds: 2, 4 and 3 times; the medians alone would say 30 / 10 with another spread.
    sides = Sides(bare=[9.0, 10.0, 5.0, 20.0], ours=[9.0, 20.0, 20.0, 60.0])
    pair = [sides.side("bare"), sides.side("ours", "bare")]
    comparison = Comparison(pair, "title", sides.shown.append)
    asyncio.run(comparison.run(3))
    del sides.shown[:]
    comparison.report()
    assert sides.shown == [
        "\n| title | CPU, ms | time, ms |",
        "|---|--:|--:|",
        "| bare | 10.0 (5.00 to 20.0) | 5.00 (5.00 to 5.00) |",
        "| ours | 20.0 (20.0 to 60.0) | 5.00 (5.00 to 5.00) |",
        "ours / bare: CPU, ms: 3.00 (2.00 to 4.00), time, ms: 1.00 (1.00 to 1.00)",
    ]


def test_awaited_measurements_do_not_overlap() -> None:
    running: list[str] = []

    def side(name: str, *against: str) -> Side:
        async def measure() -> Figures:
            assert not running
            running.append(name)
            await asyncio.sleep(0)
            running.clear()
            return {"CPU, ms": 1.0}

        return Side(name, measure, against)

    comparison = Comparison([side("A"), side("B", "A")], show=lambda _: None)
    asyncio.run(comparison.run(3))
    assert comparison.column("B", "CPU, ms") == [1.0] * 3


@pytest.mark.parametrize("wrong", ["A", "B"])
def test_a_compared_side_must_state_its_cpu_time_first(wrong: str) -> None:
    def side(name: str, *against: str) -> Side:
        figures = {"CPU, ms": 1.0, "time, ms": 2.0}
        told = dict(reversed(figures.items())) if name == wrong else figures
        return Side(name, lambda: told, against)

    comparison = Comparison([side("A"), side("B", "A")], show=lambda _: None)
    with pytest.raises(ValueError, match=f"first figure of {wrong} must be its CPU time"):
        asyncio.run(comparison.run(1))


def test_a_side_cannot_be_compared_with_an_unknown_one() -> None:
    with pytest.raises(ValueError, match="is called bear"):
        Comparison([Side("bare", dict), Side("ours", dict, ("bear",))])


def test_spread_is_median_least_and_most() -> None:
    assert spread([1.0, 250.4, 0.01]) == "1.00 (0.0100 to 250)"
    assert spread([0.0]) == "0 (0 to 0)"


def spin(seconds: float) -> str:
    return f"import time\nwhile time.process_time() < {seconds}: pass\n"


def test_cpu_time_is_of_the_named_processes_and_of_their_ended_threads() -> None:
    threads = (
        "import threading, time, sys\n"
        "def burn():\n    end = time.thread_time() + 0.2\n"
        "    while time.thread_time() < end: pass\n"
        "each = threading.Thread(target=burn); each.start(); each.join()\n"
        "print('ended', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", threads], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ended\n"
        used = process_cpu_s(process.pid)
        assert used >= 0.2
        assert cpu_s_of([process.pid, process.pid]) >= 2 * used
        assert own_and_cpu_s_of([process.pid]) >= process_cpu_s(os.getpid()) + used - 0.1
        assert process.pid in descendants(os.getpid())
        process.communicate(b"")
    with pytest.raises(OSError, match="argument"):
        process_cpu_s(process.pid)


def test_cpu_time_of_a_tree_keeps_what_ended_processes_have_used() -> None:
    before = tree_cpu_s()
    subprocess.run([sys.executable, "-c", spin(0.2)], check=True)
    assert tree_cpu_s() - before >= 0.2


def test_machine_and_load_are_stated_before_and_after() -> None:
    shown: list[str] = []
    with stated_machine(shown.append):
        assert f"{os.cpu_count()} cores" in shown[0]
        assert "card" in shown[0] or "NVIDIA" in shown[0]
        assert "load average" in shown[0]
    assert "load average at the end" in shown[1]
    assert "the host took" in shown[1]
