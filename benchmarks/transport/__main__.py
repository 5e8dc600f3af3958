"""Measure the latency and cost of messages between two processes.

The next message is sent after the consumer has reported the previous one. CPU time is that of both
processes. Latency is the time from the call that sends a message until the consumer can read the
tensors, on a clock that both processes share. The baseline is "raw", which copies the data to
memory that both processes have mapped. One comparison is printed for each payload.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side
from benchmarks.transport.arms import (
    GRPC,
    IDLE,
    INTERPRETERS,
    OMNI,
    OMNI_ENV,
    RAW,
    SHARED_MEMORY,
    WAYS,
    WHOLE,
    WHOLE_AS_STAGE,
    Arm,
    command,
)
from benchmarks.transport.producer import PAYLOADS, Measured

MALLOC = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
SMALL = PAYLOADS[0]
# The comparisons in addition to those with "raw".
AGAINST = {
    SHARED_MEMORY.name: (OMNI.name,),
    GRPC.name: (WHOLE.name, WHOLE_AS_STAGE.name),
}


async def start(arm: Arm, process_group: int | None = None) -> Process:
    """Start the producer of an alternative, which starts its consumer.

    If `process_group` is 0, both run in a separate process group.
    """
    return await asyncio.create_subprocess_exec(
        *command("producer", arm.name),
        stdin=PIPE,
        stdout=PIPE,
        limit=1 << 24,
        process_group=process_group,
    )


async def ask(producer: Process, payload: str) -> Measured:
    """Request a round."""
    assert producer.stdin is not None
    assert producer.stdout is not None
    producer.stdin.write(f"{payload}\n".encode())
    line = await producer.stdout.readline()
    return msgspec.json.decode(line, type=Measured)


def figures_of(measured: Measured) -> Figures:
    """Return the figures of a round."""
    messages = len(measured.latency_us)
    return {
        "CPU, µs per message": measured.cpu_us / messages,
        "p50, µs": measured.percentile(50),
        "p99, µs": measured.percentile(99),
        "messages/s": messages / measured.wall_us * 1e6,
    }


async def measure(producer: Process, payload: str) -> Figures:
    """Measure a round of one alternative."""
    return figures_of(await ask(producer, payload))


@asynccontextmanager
async def producing(arms: Sequence[Arm]) -> AsyncIterator[dict[str, Process]]:
    """Start the producers of all alternatives. A producer ends when its input is closed."""
    producers = {arm.name: await start(arm) for arm in arms}
    try:
        yield producers
    finally:
        for producer in producers.values():
            assert producer.stdin is not None
            producer.stdin.close()
            await producer.wait()


async def measure_alone(arm: Arm, payload: str) -> Figures:
    """Measure a round with new processes, because a busy process would disturb the others."""
    async with producing((arm,)) as producers:
        return await measure(producers[arm.name], payload)


async def compare(rounds: int, arms: Sequence[Arm]) -> None:
    """Compare all alternatives by payload, and then the effect of a busy interpreter."""
    names = {arm.name for arm in arms}
    async with producing(arms) as producers:
        for payload in PAYLOADS:
            sides = [
                Side(
                    name,
                    partial(measure, producer, payload),
                    (RAW.name, *(each for each in AGAINST.get(name, ()) if each in names))
                    if name != RAW.name
                    else (),
                )
                for name, producer in producers.items()
            ]
            comparison = Comparison(sides, payload)
            await comparison.run(rounds)
            comparison.report()
    interpreters = [
        Side(
            arm.name,
            partial(measure_alone, arm, SMALL),
            (IDLE.name,) if arm is not IDLE else (),
        )
        for arm in INTERPRETERS
    ]
    comparison = Comparison(interpreters, f"{SMALL} by shared memory, consumer's interpreter")
    await comparison.run(rounds, warm_up=0)
    comparison.report()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--omni", metavar="DIR", help="the unpacked wheel of vllm-omni 0.30")
    arguments = parser.parse_args(argv)
    if arguments.omni:
        os.environ[OMNI_ENV] = arguments.omni
    settings = ", ".join(f"{name}={os.environ[name]}" for name in MALLOC if name in os.environ)
    print(f"malloc: {settings or 'as the contestants set it'}")
    with stated_machine():
        asyncio.run(compare(arguments.rounds, (*WAYS, OMNI) if arguments.omni else WAYS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
