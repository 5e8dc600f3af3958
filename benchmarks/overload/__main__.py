"""`python -m benchmarks.overload`: measure goodput and first audio at 0.2 to 3 times the capacity.

Real services run with the checkpoint in the repository. Their steps take as long as on an
accelerator (`benchmarks/overload/pace.py`), so that the slots are the limit, and neither the cores
nor the load generator. Requests arrive over HTTP at a given rate. They are sent to two gateways in
alternating order. Requests in the queue of one gateway time out after `--wait` seconds. The other
gateway admits all requests, which can wait indefinitely.

An answer is good if its audio starts within `--good` seconds and plays without interruption. CPU
time is that of the gateway and all stages. Results are added to the file given by `--json`, so that
several runs can be combined, and `--svg` draws all results in this file.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon_tools.launcher.console import Console
from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.launcher.plan import GATEWAY, application_root, resolve, with_gateway
from antiphon_tools.load.options import read_options
from antiphon_tools.load.result import Result
from antiphon_tools.load.target import LOOPBACK, Target
from antiphon_tools.load.trials import load_service
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import cpu_s_of
from benchmarks.comparison.rounds import in_order
from benchmarks.overload.curve import CurvePoint, curve_point, kept, table
from benchmarks.overload.pace import SLOTS, STEP_S, PacedLauncher

ADMISSION, EVERYTHING = "admission", "everything in"
LOADS = (0.2, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0)


class Measured(msgspec.Struct, kw_only=True):
    """The content of the file given by `--json`. `capacity` is in requests per second."""

    capacity: float = 0.0
    points: list[CurvePoint] = []


def settings_of(arm: str, wait_s: float) -> dict[str, Any]:
    """Return the settings of a gateway."""
    if arm == ADMISSION:
        return {"queue": {"timeout_s": wait_s}, "connections": {"max_connections": 4096}}
    return {
        "queue": {
            "max_calls": 65_536,
            "max_waiting": 65_536,
            "timeout_s": 1e6,
        },
        "limits": {"request_timeout_s": 1e6, "max_memory_bytes": 1 << 42},
        "connections": {"max_connections": 4096},
    }


async def measure(given: argparse.Namespace, measured: Measured) -> None:
    """Measure all loads with both gateways, which share the stages."""
    stage = StageConfig(slots=SLOTS)
    deployment, _ = resolve(Deployment(stages=dict.fromkeys(STEP_S, stage)), application_root())
    endpoints: dict[str, Any] = {"http_listen": LOOPBACK, "grpc_listen": LOOPBACK}
    console = Console(sys.stdout, output=False)
    async with AsyncExitStack() as stack:
        first = with_gateway(deployment, endpoints | settings_of(ADMISSION, given.wait))
        running = await stack.enter_async_context(PacedLauncher(first, report=console))
        there = {
            role: StageConfig(slots=SLOTS, addresses=(running.processes[role].address,))
            for role in STEP_S
        }
        second = with_gateway(
            msgspec.structs.replace(deployment, stages=there),
            endpoints | settings_of(EVERYTHING, given.wait),
        )
        gateways = {ADMISSION: running}
        if EVERYTHING in given.arms:
            gateways[EVERYTHING] = await stack.enter_async_context(Launcher(second, report=console))

        async def load(arm: str, *how: str) -> Result:
            endpoint = gateways[arm]
            each = ["--frames", str(given.frames), "--prompt-length", str(given.words)]
            slo = ["--slo", f"ttfa={given.good:g}", "--slo", f"underrun={given.underrun:g}"]
            drain, warm_up = f"{given.drain:g}", f"{given.warm_up:g}"
            most = ["--max-open", "4096", "--drain", drain, "--warm-up", warm_up]
            options = [GATEWAY, "--target", endpoint.http_url, *each, *slo, *most, *how]
            pids = {name: process.pid for name, process in endpoint.processes.items()}
            target = Target(http_url=endpoint.http_url, pids=pids)
            return await load_service(read_options(options), target, sys.stdout)

        seconds = ["--seconds", f"{given.seconds:g}"]
        if not measured.capacity:
            result = await load(ADMISSION, "--sessions", str(SLOTS), *seconds)
            measured.capacity = result.requests_per_s
            print(f"capacity: {measured.capacity:.2f} requests a second, {SLOTS} at a time")
        shared = [running.processes[role].pid for role in STEP_S]
        for number, times in enumerate(given.loads):
            rate = times * measured.capacity
            for arm in in_order(given.arms, number):
                pids = [*shared, gateways[arm].processes[GATEWAY].pid]
                before_s = cpu_s_of(pids)
                how = ["--rate", f"{rate:g}", *seconds, "--seed", str(given.seed)]
                result = await load(arm, *how)
                point = curve_point(arm, times, rate, result)
                measured.points = [
                    each for each in measured.points if (each.arm, each.load) != (arm, times)
                ]
                measured.points.append(point)
                write(given.json, measured)
                used_s = cpu_s_of(pids) - before_s
                per_answer = f"{1e3 * used_s / max(result.requests.succeeded, 1):.0f} ms an answer"
                print(f"{arm}, load {times:g}: CPU {used_s:.2f} s, {per_answer}")
                print("\n".join(table([point])))
                print(f"{dict(result.errors)}, {result.metrics['underrun']}", flush=True)


def write(path: Path | None, measured: Measured) -> None:
    """Write the results so far."""
    if path is not None:
        points = [asdict(each) for each in measured.points]
        told = {"capacity": measured.capacity, "points": points}
        path.write_bytes(msgspec.json.format(msgspec.json.encode(told)))


def main() -> int:
    """Run the benchmark, print the results, and draw them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overload",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arms = (ADMISSION, EVERYTHING)
    parser.add_argument(
        "--arms",
        nargs="*",
        choices=arms,
        default=arms,
        help="which gateways (both); none: draw alone",
    )
    parser.add_argument("--loads", nargs="+", type=float, default=LOADS, help="times the capacity")
    parser.add_argument("--capacity", type=float, default=0.0, help="requests/s (measured)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load (20)")
    parser.add_argument("--warm-up", type=float, default=3.0, help="before that; s (3)")
    parser.add_argument("--drain", type=float, default=5.0, help="wait at its end; s (5)")
    parser.add_argument("--frames", type=int, default=25, help="most codec frames of one (25)")
    parser.add_argument("--words", type=int, default=12, help="of a request (12)")
    parser.add_argument("--wait", type=float, default=0.5, help="longest in the queue; s (0.5)")
    parser.add_argument("--good", type=float, default=1.0, help="latest first audio; s (1)")
    parser.add_argument("--underrun", type=float, default=0.5, help="longest silence; s (0.5)")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals (0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="adds to it")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draws what is there")
    given = parser.parse_args()
    measured = Measured()
    if given.json is not None and given.json.exists():
        measured = msgspec.json.decode(given.json.read_bytes(), type=Measured)
    measured.capacity = given.capacity or measured.capacity
    if given.arms:
        with stated_machine():
            asyncio.run(measure(given, measured))
    print("\n".join(table(measured.points)))
    for arm in sorted({each.arm for each in measured.points}):
        print(kept(measured.points, arm))
    if given.svg is not None:
        # Importing matplotlib takes a second.
        from benchmarks.overload.picture import draw

        draw(measured.points, given.svg, capacity=measured.capacity, limit_s=given.good)
    return 0


if __name__ == "__main__":
    sys.exit(main())
