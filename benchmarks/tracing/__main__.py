"""CPU of the gateway and three stages without models, with and without traces.

`python -m benchmarks.tracing`: the arms take turns. All of a request is in this process, its
client as well; the collector is in another. One request in a hundred is too few to show beside
the machine's noise, so its cost is also a hundredth of what it costs when all are traced.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace

import antiphon
from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.testing.stage_harness import LIMITS, running_stage
from antiphon.tracing.tracing import open_tracing
from benchmarks.runtime.engines import load
from gateway.server import Gateway

POSITIONS = 10
AT_A_TIME = 32
ARMS: dict[str, float | None] = {"off": None, "1 %": 0.01, "all": 1.0}


async def measure(ratio: float | None, endpoint: str, requests: int) -> float:
    """CPU milliseconds of a request."""
    traced = endpoint if ratio is not None else ""
    async with AsyncExitStack() as stack:
        addresses = {}
        for role in PIPELINE.roles:
            loaded = load(role, POSITIONS)
            facts = replace(loaded.facts, input_kinds=("text",), voices=("one",))
            tracing = open_tracing(traced, f"antiphon-{role}", field="")
            stack.callback(tracing.close)
            stage = await stack.enter_async_context(
                running_stage(
                    replace(loaded, facts=facts),
                    role,
                    pipeline=PIPELINE,
                    limits=replace(LIMITS, slots=AT_A_TIME),
                    tracing=tracing,
                )
            )
            addresses[role] = stage.address
        config = GatewayConfig(
            http_listen="127.0.0.1:0",
            probe_timeout_s=60.0,
            trace_endpoint=traced,
            trace_ratio=ratio or 0.0,
        )
        stages = {role: StageConfig(addresses=(each,)) for role, each in addresses.items()}
        running = await stack.enter_async_context(
            Gateway(Deployment(stages=stages, gateway=config))
        )
        await running.wait_ready()
        client = await stack.enter_async_context(antiphon.AsyncClient(running.grpc_address))
        await ask(client, AT_A_TIME)
        before = time.process_time()
        await ask(client, requests)
        return (time.process_time() - before) / requests * 1000


async def ask(client: antiphon.AsyncClient, requests: int) -> None:
    """Ask so often, some at a time."""
    left = iter(range(requests))

    async def one_after_the_other() -> None:
        for _ in left:
            await client.generate("How does it work?", modalities=["audio"]).collect()

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_A_TIME)))


def main() -> None:
    """Measure all arms, and print their medians and what they are beside no traces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=500)
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "antiphon.testing.trace_collector"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as collector:
        assert collector.stdout is not None
        endpoint = collector.stdout.readline().strip()
        took: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for number in range(arguments.rounds):
            for arm in list(ARMS) if number % 2 else reversed(ARMS):
                took[arm].append(asyncio.run(measure(ARMS[arm], endpoint, arguments.requests)))
        collector.kill()
    off = took["off"]
    for arm, each in took.items():
        ratios = [mine / base for mine, base in zip(each, off, strict=True)]
        print(f"{arm:>4}: {statistics.median(each):6.2f} ms of CPU a request, ", end="")
        print(f"{statistics.median(ratios):.3f} of off ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
