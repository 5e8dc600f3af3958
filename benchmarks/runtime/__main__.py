"""Measure the runtime's own cost per codec frame and per token, for one or two checkouts.

Three real stage processes are linked, but their engines perform no computation. The remaining cost
is that of the runtime, the transport and gRPC. The figures are the CPU time of each process per
position for several numbers of sessions, and the number of Python calls in `antiphon` per position.
With `--against DIR`, both checkouts are measured in alternating order, and DIR is the baseline. The
other checkout must contain this benchmark.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from antiphon_tools.launcher.plan import import_path
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import process_cpu_s
from benchmarks.comparison.rounds import Comparison, Figures, Side
from benchmarks.runtime.sessions import ROLES, run_sessions

HERE = Path(__file__).parents[2]
POSITIONS = 200


def start(checkout: Path, role: str, sessions: int, *flags: str) -> subprocess.Popen[str]:
    """Start a stage process from a checkout."""
    command = [sys.executable, "-m", "benchmarks.runtime.stage", role, str(sessions)]
    return subprocess.Popen(
        [*command, str(POSITIONS), *flags],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": import_path(checkout)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def measure(checkout: Path, sessions: int) -> Figures:
    """Measure the CPU time per position, after a session that serves as a warm-up."""
    processes = {role: start(checkout, role, max(sessions, 2)) for role in ROLES}
    try:
        addresses = {role: _line(process) for role, process in processes.items()}
        asyncio.run(run_sessions(addresses, 1, "warm"))
        before = {role: process_cpu_s(process.pid) for role, process in processes.items()}
        asyncio.run(run_sessions(addresses, sessions, "measured"))
        made = sessions * POSITIONS
        used_us = {
            role: 1e6 * (process_cpu_s(process.pid) - before[role]) / made
            for role, process in processes.items()
        }
        for process in processes.values():
            process.communicate(timeout=60)
    finally:
        _kill(processes.values())
    each = {f"CPU of {role}, µs": used for role, used in used_us.items()}
    return {"CPU of all, µs per position": sum(used_us.values()), **each}


def count_calls(checkout: Path, sessions: int) -> float:
    """Return the number of Python calls in `antiphon` per position, for all processes."""
    processes = {role: start(checkout, role, max(sessions, 2), "--count-calls") for role in ROLES}
    try:
        addresses = {role: _line(process) for role, process in processes.items()}
        asyncio.run(run_sessions(addresses, sessions, "measured"))
        printed = [process.communicate(timeout=60)[0] for process in processes.values()]
    finally:
        _kill(processes.values())
    return sum(map(int, printed)) / (sessions * POSITIONS)


def _kill(processes: Iterable[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if not (line := process.stdout.readline().strip()):
        raise RuntimeError("a stage process did not start; its error is above")
    return line


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout")
    arguments = parser.parse_args(argv)
    checkouts = {"this": HERE}
    if arguments.against is not None:
        checkouts["other"] = arguments.against.resolve()
    with stated_machine():
        for sessions in arguments.sessions:
            sides = [
                Side(
                    name,
                    partial(asyncio.to_thread, measure, checkout, sessions),
                    ("other",) if name == "this" and "other" in checkouts else (),
                )
                for name, checkout in checkouts.items()
            ]
            comparison = Comparison(
                sides, f"{sessions} sessions of {POSITIONS} tokens and {POSITIONS} frames"
            )
            asyncio.run(comparison.run(arguments.rounds, warm_up=0))
            comparison.report()
            for name, checkout in checkouts.items():
                calls = count_calls(checkout, sessions)
                print(f"{name}: {calls:.0f} Python calls per position", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
