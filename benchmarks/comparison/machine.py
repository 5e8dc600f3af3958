"""Describes the conditions of a benchmark: code, cores, GPU, and the load of the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from antiphon_tools.load.machine import load_average, machine, processor
from benchmarks.comparison.rounds import Show, show_now

CARD_TIMEOUT_S = 30.0
# Columns of the first line of /proc/stat (Linux).
_STOLEN = 7
_COUNTED = 8


@contextmanager
def stated_machine(show: Show = show_now) -> Iterator[None]:
    """Print the machine and its load before the context, and the load and stolen time after it."""
    known = machine()
    available = len(os.sched_getaffinity(0))
    show(
        f"antiphon {known['antiphon']}, {known['commit']}; {known['machine']} ({processor()}), "
        f"{available} of them for this process; {card()}; load average {load_average()}"
    )
    before = CoreTicks.now()
    try:
        yield
    finally:
        stolen = before.stolen_until(CoreTicks.now())
        show(f"\nload average at the end {load_average()}; the host took {stolen:.1%} of the cores")


def card() -> str:
    """Return the names of the NVIDIA GPUs, or "no card"."""
    if (program := shutil.which("nvidia-smi")) is None:
        return "no card"
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=CARD_TIMEOUT_S, check=False
    )
    return ", ".join(found.stdout.split("\n")).strip(", ") if found.returncode == 0 else "no card"


@dataclass(frozen=True, slots=True)
class CoreTicks:
    """The total number of ticks of all cores, and the number of ticks taken by the host."""

    passed: int
    stolen: int

    @classmethod
    def now(cls) -> CoreTicks:
        """Read the current values."""
        ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return cls(sum(ticks[:_COUNTED]), ticks[_STOLEN])

    def stolen_until(self, later: CoreTicks) -> float:
        """Return the fraction of CPU time that the host has taken between two points in time."""
        return (later.stolen - self.stolen) / max(later.passed - self.passed, 1)
