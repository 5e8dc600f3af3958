"""CPU time of the gateway and three stages without models, with and without traces.

`python -m benchmarks.tracing`: the sides differ in nothing but the share of requests that is
traced; "off" is the baseline. Gateway, stages and client are in this process; the collector is in
another and is not counted. One request in a hundred is too few to show through the machine's
noise, so its cost is also a hundredth of what it costs when all are traced.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from functools import partial

import antiphon
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side
from benchmarks.runtime.gateway import gateway_without_models

POSITIONS = 10
AT_A_TIME = 32
OFF = "off"
RATIOS: dict[str, float | None] = {OFF: None, "1 %": 0.01, "all": 1.0}


async def measure(ratio: float | None, collector: str, requests: int) -> Figures:
    """Answer so many requests and return the CPU time and the time of one."""
    endpoint = "" if ratio is None else collector
    async with (
        gateway_without_models(
            POSITIONS, AT_A_TIME, trace_endpoint=endpoint, trace_ratio=ratio or 0.0
        ) as gateway,
        antiphon.AsyncClient(gateway.grpc_address) as client,
    ):
        await ask(client, AT_A_TIME)
        before_s, began = time.process_time(), time.perf_counter()
        await ask(client, requests)
        used_s, took_s = time.process_time() - before_s, time.perf_counter() - began
    return {"CPU, ms per request": 1e3 * used_s / requests, "time, s": took_s}


async def ask(client: antiphon.AsyncClient, requests: int) -> None:
    """Make so many requests, some at a time."""
    left = iter(range(requests))

    async def one_after_the_other() -> None:
        for _ in left:
            await client.generate("How does it work?", modalities=["audio"]).collect()

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_A_TIME)))


async def compare(collector: str, rounds: int, requests: int) -> None:
    """Measure all sides and report."""
    sides = [
        Side(
            f"traced: {name}",
            partial(measure, ratio, collector, requests),
            () if ratio is None else (f"traced: {OFF}",),
        )
        for name, ratio in RATIOS.items()
    ]
    comparison = Comparison(sides, f"{requests} requests, {AT_A_TIME} at a time")
    await comparison.run(rounds)
    comparison.report()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=500)
    given = parser.parse_args()
    command = [sys.executable, "-m", "antiphon_testkit.trace_collector"]
    with (
        stated_machine(),
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as collector,
    ):
        assert collector.stdout is not None
        endpoint = collector.stdout.readline().strip()
        try:
            asyncio.run(compare(endpoint, given.rounds, given.requests))
        finally:
            collector.kill()


if __name__ == "__main__":
    main()
