"""Measure the cost of an idle fleet: `python -m benchmarks.idle [--against DIR]`.

The fleet consists of a gateway and three stage processes whose engines perform no computation.
After some calls, which open standing streams, the CPU time and the wake-ups (voluntary context
switches of all threads) of each process are measured for a while. After that, one stage is stopped
(SIGSTOP), resumed, and killed (SIGKILL). The figure is the time until the gateway's `/health`
reports that it is not ready. With `--against DIR`, another checkout is measured in alternating
order. `--json FILE` writes every round to a file, and `--threads` prints the wake-ups of each
thread.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import httpx

from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Side, show_now
from benchmarks.opening.__main__ import HERE, Fleet
from benchmarks.opening.calls import open_grpc

PROBE_TIMEOUT_S = 1.5
"""The default, which the benchmark of opening calls increases."""
CALLS = 4
SETTLED_S = 2.0
PAUSE_S = 0.01
WAIT_S = 60.0
STOPPED = "talker"


def wake_ups(pid: int) -> Counter[str]:
    """Return the voluntary context switches of a process's threads so far, by thread name."""
    found: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        found[fields["Name"].strip()] += int(fields["voluntary_ctxt_switches"])
    return found


async def measure(checkout: Path, seconds: float, *, threads: bool) -> Mapping[str, float]:
    """Measure a fleet. CPU time is a fraction of one core."""
    fleet = Fleet(checkout, CALLS, probe_timeout_s=PROBE_TIMEOUT_S)
    try:
        await open_grpc(fleet.addresses["grpc"], CALLS)
        await asyncio.sleep(SETTLED_S)
        began, cpu_before = time.perf_counter(), fleet.cpu_s()
        woken_before = {name: wake_ups(pid) for name, pid in fleet.pids.items()}
        await asyncio.sleep(seconds)
        took, cpu_after = time.perf_counter() - began, fleet.cpu_s()
        woken = {name: wake_ups(pid) - woken_before[name] for name, pid in fleet.pids.items()}
        cpu = {name: 100 * (cpu_after[name] - cpu_before[name]) / took for name in fleet.pids}
        if threads:
            for name, counts in woken.items():
                each = (f"{thread} {count / took:.1f}" for thread, count in counts.most_common())
                show_now(f"  {name}: {', '.join(each)} a second")
        figures = {"CPU of all, % of a core": sum(cpu.values())}
        figures |= {f"CPU of {name}, %": each for name, each in cpu.items()}
        figures |= {f"wake-ups of {name}, 1/s": each.total() / took for name, each in woken.items()}
        return figures | await _noticed(fleet)
    finally:
        fleet.stop()


async def _noticed(fleet: Fleet) -> dict[str, float]:
    pid, address = fleet.pids[STOPPED], fleet.addresses["http"]
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=WAIT_S) as client:
        os.kill(pid, signal.SIGSTOP)
        stopped_s = await _waited(client, ready=False)
        os.kill(pid, signal.SIGCONT)
        await _waited(client, ready=True)
        os.kill(pid, signal.SIGKILL)
        killed_s = await _waited(client, ready=False)
    return {"stopped stage noticed, s": stopped_s, "killed stage noticed, s": killed_s}


async def _waited(client: httpx.AsyncClient, *, ready: bool) -> float:
    began = time.perf_counter()
    async with asyncio.timeout(WAIT_S):
        while (await client.get("/health")).is_success is not ready:  # noqa: ASYNC110 - as a probe
            await asyncio.sleep(PAUSE_S)
    return time.perf_counter() - began


async def compare(options: argparse.Namespace) -> Comparison:
    """Measure all rounds."""
    measured = partial(measure, seconds=options.seconds, threads=options.threads)
    sides = [Side("now", partial(measured, HERE))]
    if options.against is not None:
        sides = [
            Side("before", partial(measured, options.against.resolve())),
            Side("now", partial(measured, HERE), against=("before",)),
        ]
    comparison = Comparison(sides)
    await comparison.run(options.rounds, warm_up=0)
    return comparison


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.idle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout")
    parser.add_argument("--seconds", type=float, default=20.0, help="of rest (20)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", action="store_true", help="print each thread's wake-ups")
    parser.add_argument("--json", type=Path, metavar="FILE", help="gets every round's figures")
    options = parser.parse_args(argv)
    with stated_machine():
        comparison = asyncio.run(compare(options))
    comparison.report()
    if options.json:
        options.json.write_text(json.dumps(comparison.rounds, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
