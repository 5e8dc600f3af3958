"""The runtime's own cost per codec frame and per token, of one or two checkouts.

Three real stage processes, linked, whose engines compute nothing: what is left is the runtime,
transport and gRPC. Prints CPU time of each process per position at several numbers of sessions,
and Python calls in `antiphon` per position. With `--against DIR` (another checkout that has this
benchmark) both sides run interleaved, and ratios are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.runtime.sessions import ROLES, run_sessions

HERE = Path(__file__).parents[2]
POSITIONS = 200


@dataclass(slots=True)
class Cell:
    """Microseconds of CPU per position in each round, and calls per position, by role."""

    cpu_us: dict[str, list[float]] = field(default_factory=lambda: {r: [] for r in ROLES})
    calls: dict[str, float] = field(default_factory=dict)

    def total_us(self) -> float:
        """Median over the rounds of all processes' sum."""
        return statistics.median(map(sum, zip(*self.cpu_us.values(), strict=True)))


def cpu_ns(pid: int) -> int:
    """CPU time that all threads of a process have used."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())


def start(checkout: Path, role: str, sessions: int, *flags: str) -> subprocess.Popen[str]:
    """One stage process of a checkout."""
    command = [sys.executable, "-m", "benchmarks.runtime.stage", role, str(sessions)]
    return subprocess.Popen(
        [*command, str(POSITIONS), *flags],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def measure(checkout: Path, sessions: int, cell: Cell, *, count_calls: bool) -> None:
    """One round: warm up with one session, then so many."""
    flags = ("--count-calls",) if count_calls else ()
    processes = {role: start(checkout, role, max(sessions, 2), *flags) for role in ROLES}
    try:
        addresses = {role: _line(process) for role, process in processes.items()}
        if not count_calls:
            asyncio.run(run_sessions(addresses, 1, "warm"))
        before = {role: cpu_ns(process.pid) for role, process in processes.items()}
        asyncio.run(run_sessions(addresses, sessions, "measured"))
        made = sessions * POSITIONS
        for role, process in processes.items():
            used_us = (cpu_ns(process.pid) - before[role]) / 1e3
            if not count_calls:
                cell.cpu_us[role].append(used_us / made)
        for role, process in processes.items():
            told, _ = process.communicate(timeout=60)
            if count_calls:
                cell.calls[role] = int(told.strip()) / made
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if not (line := process.stdout.readline().strip()):
        raise RuntimeError("a stage process did not start; its error is above")
    return line


def show(sides: Sequence[tuple[str, dict[int, Cell]]]) -> None:
    """Print the table as Markdown."""
    columns = " | ".join(f"{role} µs" for role in ROLES)
    print(
        f"| sessions | side | {columns} | all µs (range) | calls |{' ratio |' * (len(sides) - 1)}"
    )
    print("|--:|---|" + "--:|" * (len(ROLES) + 1 + len(sides)))
    for sessions in sides[0][1]:
        base = sides[-1][1][sessions].total_us()
        for name, cells in sides:
            cell = cells[sessions]
            each = " | ".join(f"{statistics.median(cell.cpu_us[role]):.0f}" for role in ROLES)
            totals = [sum(row) for row in zip(*cell.cpu_us.values(), strict=True)]
            ratio = f" {cell.total_us() / base:.2f} |" if len(sides) > 1 else ""
            print(
                f"| {sessions} | {name} | {each} "
                f"| {cell.total_us():.0f} ({min(totals):.0f} to {max(totals):.0f}) "
                f"| {sum(cell.calls.values()):.0f} |{ratio}"
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout")
    arguments = parser.parse_args(argv)
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, ", end="")
    print(f"Python {platform.python_version()}; {POSITIONS} tokens and frames a session\n")
    checkouts = [("this", HERE)]
    if arguments.against is not None:
        checkouts.append(("other", arguments.against.resolve()))
    sides = [(name, {n: Cell() for n in arguments.sessions}) for name, _ in checkouts]
    for number in range(arguments.rounds + 1):
        for sessions in arguments.sessions:
            for (_, cells), (_, checkout) in zip(sides, checkouts, strict=True):
                measure(checkout, sessions, cells[sessions], count_calls=number == arguments.rounds)
    show(sides)
    return 0


if __name__ == "__main__":
    sys.exit(main())
