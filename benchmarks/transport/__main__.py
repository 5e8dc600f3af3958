"""Message latency and cost between two processes, all contestants in one interleaved run.

Closed loop: the next message is sent when the consumer has reported the last. Latency
is from the call that sends until the consumer can read the tensors, on the clock
that both share; CPU is of both processes. Prints one table per payload and ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from benchmarks.transport.arms import (
    BUSY,
    BUSY_DEFAULT,
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
Cells = dict[str, dict[str, Measured]]


async def start(arm: Arm, process_group: int | None = None) -> Process:
    """The arm's producer, which starts its consumer; 0: both in a group of their own."""
    return await asyncio.create_subprocess_exec(
        *command("producer", arm.name),
        stdin=PIPE,
        stdout=PIPE,
        limit=1 << 24,
        process_group=process_group,
    )


async def ask(producer: Process, payload: str) -> Measured:
    """One round."""
    assert producer.stdin is not None
    assert producer.stdout is not None
    producer.stdin.write(f"{payload}\n".encode())
    line = await producer.stdout.readline()
    return msgspec.json.decode(line, type=Measured)


async def run(rounds: int, arms: Sequence[Arm], payloads: Sequence[str]) -> Cells:
    """Everything, interleaved: payload -> arm -> what was measured."""
    cells: Cells = defaultdict(lambda: defaultdict(Measured))
    producers = {arm.name: await start(arm) for arm in arms}
    for _ in range(rounds):
        for payload in payloads:
            for arm in arms:
                cells[payload][arm.name].add(await ask(producers[arm.name], payload))
    for producer in producers.values():
        assert producer.stdin is not None
        producer.stdin.close()
        await producer.wait()
    return cells


async def run_apart(rounds: int, arms: Sequence[Arm], payload: str) -> dict[str, Measured]:
    """As `run`, but only one arm's processes live at a time: a busy one is busy in vain."""
    row: dict[str, Measured] = defaultdict(Measured)
    for _ in range(rounds):
        for arm in arms:
            cells = await run(1, (arm,), (payload,))
            row[arm.name].add(cells[payload][arm.name])
    return row


def show(cells: Cells) -> None:
    """Print the table as Markdown."""
    print("| payload | contestant | p50 µs | p99 µs | messages/s | CPU µs/message | times raw |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for payload, row in cells.items():
        for name, cell in row.items():
            count, p50 = len(cell.latency_us), cell.percentile(50)
            print(
                f"| {payload} | {name} | {p50:.0f} | {cell.percentile(99):.0f} "
                f"| {count / cell.wall_us * 1e6:.0f} | {cell.cpu_us / count:.0f} "
                f"| {p50 / row[RAW.name].percentile(50):.1f} |"
            )


def show_ratios(cells: Cells) -> None:
    """Print how much faster one is than another."""
    faster = (
        ("shared memory than omni", SHARED_MEMORY, OMNI),
        ("framed than whole gRPC", GRPC, WHOLE),
        ("framed than whole gRPC set as a stage", GRPC, WHOLE_AS_STAGE),
    )
    print("\n| faster, p50 | " + " | ".join(cells) + " |")
    print("|---|" + "--:|" * len(cells))
    for words, arm, other in faster:
        shown = (ratio(row, other, arm) for row in cells.values())
        print(f"| {words} | " + " | ".join(shown) + " |")


def ratio(row: dict[str, Measured], slower: Arm, faster: Arm) -> str:
    """How many times as long the one takes as the other."""
    if slower.name not in row:
        return "not measured"
    return f"{row[slower.name].percentile(50) / row[faster.name].percentile(50):.1f}x"


def show_interpreter(row: dict[str, Measured]) -> None:
    """Print what a busy interpreter costs a small message."""
    print(f"\n| {SMALL} by shared memory, consumer's interpreter | p50 µs | p99 µs | times idle |")
    print("|---|--:|--:|--:|")
    idle = row[IDLE.name].percentile(50)
    for name, cell in row.items():
        p50, p99 = cell.percentile(50), cell.percentile(99)
        print(f"| {name} | {p50:.0f} | {p99:.0f} | {p50 / idle:.1f} |")
    print(f"\n5 ms takes {ratio(row, BUSY_DEFAULT, BUSY)} as long as 100 µs.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--omni", metavar="DIR", help="the unpacked wheel of vllm-omni 0.30")
    arguments = parser.parse_args(argv)
    if arguments.omni:
        os.environ[OMNI_ENV] = arguments.omni
    settings = ", ".join(f"{name}={os.environ[name]}" for name in MALLOC if name in os.environ)
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, ", end="")
    print(f"Python {platform.python_version()}; malloc: {settings or 'as the contestants say'}\n")
    arms = (*WAYS, OMNI) if arguments.omni else WAYS
    cells = asyncio.run(run(arguments.rounds, arms, PAYLOADS))
    show(cells)
    show_ratios(cells)
    show_interpreter(asyncio.run(run_apart(arguments.rounds, INTERPRETERS, SMALL)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
