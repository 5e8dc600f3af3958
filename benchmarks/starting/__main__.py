"""What starting a deployment costs: `python -m benchmarks.starting [--against DIR]`.

The launcher of a checkout starts all stages and the gateway of a checkpoint, each as its own
process. When all are ready, the CPU time and the memory of each process are read, including the
fork server, and everything is stopped. With `--against DIR` another checkout is measured in
alternating order, and is the baseline. `--json FILE` gets every round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from antiphon_tools.launcher.plan import import_path
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import descendants, process_cpu_s
from benchmarks.comparison.rounds import Comparison, Side

HERE = Path(__file__).parents[2]
GATEWAY, STAGE = "antiphon_gateway", "antiphon_services"
FORK_SERVER = "antiphon_tools.launcher.fork_server"
READY = "ready in "
STOP_TIMEOUT_S = 60.0
BYTES = {"kB": 1024}
MB = 1e6


def measure(checkout: Path, model: str) -> Mapping[str, float]:
    """The figures of one start."""
    command = [sys.executable, "-P", "-m", "antiphon_tools.launcher", "up", "--on-exit", "stop"]
    ports = ["--port", "0", "--grpc-port", "0"]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, *ports, *(["--model", model] if model else [])],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": import_path(checkout)},
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert launcher.stdout is not None
        try:
            lines = []
            for line in launcher.stdout:
                lines.append(line)
                if line.startswith(READY):
                    break
            else:
                raise RuntimeError(f"the launcher ended before all was ready:\n{''.join(lines)}")
            took = time.perf_counter() - began
            return {**_of_processes(launcher.pid), "ready, s": took}
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.communicate(timeout=STOP_TIMEOUT_S)


def _of_processes(launcher: int) -> dict[str, float]:
    found = {name: pid for pid in descendants(launcher) if (name := _name_of(pid))}
    cpu = {name: process_cpu_s(pid) for name, pid in found.items()}
    memory = {name: memory_of(pid) for name, pid in found.items()}
    figures = {"CPU of all, s": sum(cpu.values())}
    figures |= {f"CPU of {name}, s": each for name, each in sorted(cpu.items())}
    figures["PSS of all, MB"] = sum(each["Pss"] for each in memory.values()) / MB
    return figures | {f"RSS of {name}, MB": memory[name]["Rss"] / MB for name in sorted(memory)}


def _name_of(pid: int) -> str:
    """The role of a stage's process, "gateway", "fork server", or "" for any other process."""
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    for module, name in ((GATEWAY, "gateway"), (FORK_SERVER, "fork server"), (STAGE, "")):
        if module in arguments:
            return name or arguments[arguments.index(module) + 1]
    return ""


def memory_of(pid: int) -> dict[str, int]:
    """Bytes of a process's memory by kind, such as `Rss` and `Pss` (Linux)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = (line.replace(":", " ").split() for line in lines)
    return {name: int(number) * BYTES[unit] for name, number, unit in fields}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the process's exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.starting",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout")
    parser.add_argument("--model", default="", metavar="DIR", help="checkpoint (the embedded one)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="gets every round's figures")
    options = parser.parse_args(argv)
    model = str(Path(options.model).resolve()) if options.model else ""
    sides = [Side("now", partial(measure, HERE, model))]
    if options.against is not None:
        before = partial(measure, options.against.resolve(), model)
        sides = [Side("before", before), Side("now", sides[0].measure, against=("before",))]
    comparison = Comparison(sides, "starting")
    with stated_machine():
        asyncio.run(comparison.run(options.rounds))
        comparison.report()
    if options.json:
        options.json.write_text(json.dumps(comparison.rounds, indent=1, default=dict) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
