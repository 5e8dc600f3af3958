"""Measure the cost of opening a call: `python -m benchmarks.opening [--against DIR]`.

The fleet consists of a gateway and three stage processes whose engines perform no computation.
Calls are opened at the same time over gRPC and over HTTP. Each call speaks a few frames and ends. A
round measures the CPU time of each process per call in milliseconds, the number of calls per
second, and the median time until each step. With `--against DIR`, another checkout is measured in
alternating order, with the client of this checkout. It is the baseline. With `--gateways N`, the
same calls are also measured with N gateway processes that share their ports. gRPC calls use a
single connection, and therefore a single gateway, unless there are several `--channels`. `--json
FILE` writes every round to a file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.transport.listening import reserve_port
from antiphon_tools.launcher.plan import import_path, replica_names, role_of
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import process_cpu_s
from benchmarks.comparison.rounds import in_order, show_now
from benchmarks.opening.calls import PROTOCOLS, medians

HERE = Path(__file__).parents[2]
COUNTS = (1, 4, 16, 64, 256)
FRAMES = 2


class Fleet:
    """A gateway and its stages from one checkout. Several gateways share their ports.

    `settings` contains gateway settings, with the names that `gateway_config` uses.
    """

    def __init__(self, checkout: Path, slots: int, gateways: int = 1, **settings: Any) -> None:
        self._checkout = checkout
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._reserved = ExitStack()
        if gateways > 1:
            settings |= {"sharing_ports": True, "metrics_listen": "127.0.0.1:0"}
            settings |= {name: self._reserve() for name in ("http_listen", "grpc_listen")}
        try:
            for role in PIPELINE.roles:
                self._start(role, "stage", role, str(slots), str(FRAMES))
            stages = {role: self._line(role) for role in PIPELINE.roles}
            names = replica_names("gateway", gateways)
            for name in names:
                self._start(name, "gateway", json.dumps(stages), json.dumps(settings))
            # Several gateways print the same addresses.
            printed = [self._line(each) for each in names]
            self.addresses: dict[str, str] = json.loads(printed[0])
        except BaseException:
            self.stop()
            raise

    @property
    def pids(self) -> dict[str, int]:
        """The process IDs by role. The gateway has its own name."""
        return {name: each.pid for name, each in self._processes.items()}

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU time of each process so far, including this one, which runs the client."""
        used: dict[str, float] = defaultdict(float)
        for name, each in self._processes.items():
            used[role_of(name)] += process_cpu_s(each.pid)
        return used | {"client": time.process_time()}

    def stop(self) -> None:
        """Stop all processes."""
        for each in self._processes.values():
            each.kill()
            each.wait()
        self._reserved.close()

    def _reserve(self) -> str:
        sockets = reserve_port("127.0.0.1", 0)
        for each in sockets:
            self._reserved.enter_context(each)
        return f"127.0.0.1:{sockets[0].getsockname()[1]}"

    def _start(self, name: str, *arguments: str) -> None:
        # -P prevents imports from the directory of the script, which belongs to this checkout.
        command = [sys.executable, "-P", str(HERE / "benchmarks/opening/process.py"), *arguments]
        self._processes[name] = subprocess.Popen(
            command,
            cwd=self._checkout,
            env={**os.environ, "PYTHONPATH": import_path(self._checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _line(self, name: str) -> str:
        output = self._processes[name].stdout
        assert output is not None
        if not (line := output.readline().strip()):
            raise RuntimeError(f"the process {name} did not start; its error is above")
        return line


@contextmanager
def fleets(
    checkouts: Mapping[str, Path], slots: int, gateways: int = 1
) -> Iterator[dict[str, Fleet]]:
    """Start a fleet for each checkout, and stop them afterwards. If there are to be several
    gateways, start another fleet with them from this checkout.
    """
    made: dict[str, Fleet] = {}
    try:
        for name, checkout in checkouts.items():
            made[name] = Fleet(checkout, slots)
        if gateways > 1:
            made[f"{gateways} gateways"] = Fleet(HERE, slots, gateways)
        yield made
    finally:
        for each in made.values():
            each.stop()


def measure(fleet: Fleet, protocol: str, count: int, channels: int = 1) -> dict[str, float]:
    """Measure a round."""
    before, began = fleet.cpu_s(), time.perf_counter()
    calls = asyncio.run(_opened(fleet, protocol, count, channels))
    took, after = time.perf_counter() - began, fleet.cpu_s()
    used = {name: 1e3 * (after[name] - before[name]) / count for name in after}
    served = sum(each for name, each in used.items() if name != "client")
    each = {f"CPU of {name}, ms": value for name, value in used.items()}
    return {"CPU served, ms": served, **each, "calls per s": count / took, **medians(calls)}


async def _opened(fleet: Fleet, protocol: str, count: int, channels: int) -> Any:
    return await PROTOCOLS[protocol](fleet.addresses[protocol], count, channels)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    options = _options(argv)
    checkouts = {"now": HERE}
    if options.against is not None:
        checkouts = {"before": options.against.resolve(), **checkouts}
    rounds: dict[tuple[str, int, str], list[dict[str, float]]] = defaultdict(list)
    with stated_machine(), fleets(checkouts, max(options.calls), options.gateways) as sides:
        names = list(sides)
        loads = [(protocol, count) for protocol in options.protocols for count in options.calls]
        # The first round of each load is a warm-up.
        for number in range(-1, options.rounds):
            for at, (protocol, count) in enumerate(in_order(loads, number)):
                for side in in_order(list(sides), number + at):
                    figures = measure(sides[side], protocol, count, options.channels)
                    if number >= 0:
                        rounds[protocol, count, side].append(figures)
            show_now(f"round {number + 1} of {options.rounds}")
    for protocol, count in loads:
        _report(protocol, count, {side: rounds[protocol, count, side] for side in names})
    if options.json:
        rows = [
            {"protocol": protocol, "calls": count, "side": side, "rounds": each}
            for (protocol, count, side), each in rounds.items()
        ]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def _report(protocol: str, count: int, sides: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    show_now(f"\n{protocol}, {count} at once: medians of {len(next(iter(sides.values())))} rounds")
    show_now(f"| | {' | '.join(sides)} |")
    show_now(f"|---|{'--:|' * len(sides)}")
    for name in next(iter(sides.values()))[0]:
        shown = (f"{statistics.median(each[name] for each in side):.2f}" for side in sides.values())
        show_now(f"| {name} | {' | '.join(shown)} |")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.opening",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout")
    parser.add_argument("--calls", type=int, nargs="+", default=list(COUNTS), help="at once")
    parser.add_argument("--protocols", nargs="+", choices=tuple(PROTOCOLS), default=list(PROTOCOLS))
    parser.add_argument("--gateways", type=int, default=1, metavar="N", help="of another side")
    parser.add_argument("--channels", type=int, default=1, metavar="N", help="for gRPC calls")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="gets every round's figures")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
