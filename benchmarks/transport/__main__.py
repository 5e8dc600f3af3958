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
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from antiphon.chunk import Tensors
from benchmarks.transport.contestants import (
    AntiphonLink,
    Contestant,
    OmniConnector,
    RawLimit,
    WholeMessages,
)

MALLOC = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


@dataclass(slots=True)
class Cell:
    """All messages of one payload on one contestant; microseconds."""

    latency_us: list[float] = field(default_factory=list)
    wall_us: float = 0.0
    cpu_us: float = 0.0

    def percentile(self, share: int) -> float:
        """A percentile of the latency."""
        return float(np.percentile(self.latency_us, share))


def payloads() -> dict[str, tuple[Tensors, int]]:
    """Tensors and messages per round, by name."""
    row = np.arange(2048, dtype=np.float32).astype(ml_dtypes.bfloat16)
    return {
        "3.2 KB": ({"codes": np.arange(400).reshape(16, 25)}, 60),
        "8 KB": ({"rows": np.tile(row, (2, 1))}, 60),
        "192 KB": ({"samples": np.zeros(48_000, np.float32)}, 40),
        "4 MB": ({"rows": np.tile(row, (1_000, 1))}, 12),
        "41 MB": ({"rows": np.tile(row, (10_000, 1))}, 3),
    }


async def measure(contestant: Contestant, tensors: Tensors, messages: int, cell: Cell) -> None:
    """One round of one payload. The first message warms up and is left out."""
    await contestant.send(tensors)
    before = await contestant.reports.next()
    own_cpu, started = time.process_time_ns(), time.monotonic_ns()
    arrival = before
    for _ in range(messages):
        sent_at = time.monotonic_ns()
        await contestant.send(tensors)
        arrival = await contestant.reports.next()
        cell.latency_us.append((arrival.at_ns - sent_at) / 1e3)
    cell.wall_us += (time.monotonic_ns() - started) / 1e3
    cell.cpu_us += (time.process_time_ns() - own_cpu + arrival.cpu_ns - before.cpu_ns) / 1e3


async def run(rounds: int, omni: str | None) -> dict[str, dict[str, Cell]]:
    """Everything, interleaved: payload -> contestant -> what was measured."""
    contestants: list[Contestant] = [
        RawLimit(), AntiphonLink("shared_memory"), AntiphonLink("grpc"), WholeMessages(),
    ]  # fmt: skip
    if omni:
        contestants.append(OmniConnector(omni))
    cells: dict[str, dict[str, Cell]] = defaultdict(lambda: defaultdict(Cell))
    try:
        for contestant in contestants:
            await contestant.start()
        for _ in range(rounds):
            for payload, (tensors, messages) in payloads().items():
                for contestant in contestants:
                    cell = cells[payload][contestant.name]
                    await measure(contestant, tensors, messages, cell)
    finally:
        for contestant in contestants:
            await contestant.stop()
    return cells


def show(cells: dict[str, dict[str, Cell]]) -> None:
    """Print the tables as Markdown."""
    settings = ", ".join(f"{name}={os.environ[name]}" for name in MALLOC if name in os.environ)
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, ", end="")
    print(f"Python {platform.python_version()}; malloc: {settings or 'defaults'}\n")
    print("| payload | contestant | p50 µs | p99 µs | messages/s | CPU µs/message | times raw |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for payload, row in cells.items():
        for name, cell in row.items():
            count, p50 = len(cell.latency_us), cell.percentile(50)
            print(
                f"| {payload} | {name} | {p50:.0f} | {cell.percentile(99):.0f} "
                f"| {count / cell.wall_us * 1e6:.0f} | {cell.cpu_us / count:.0f} "
                f"| {p50 / row['raw'].percentile(50):.1f} |"
            )
    print("\n| payload | shared memory faster than omni | framed faster than whole gRPC |")
    print("|---|--:|--:|")
    for payload, row in cells.items():
        own, framed = row["shared_memory"].percentile(50), row["grpc"].percentile(50)
        omni = f"{row['omni'].percentile(50) / own:.1f}x" if "omni" in row else "not measured"
        print(f"| {payload} | {omni} | {row['grpc whole'].percentile(50) / framed:.1f}x |")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--omni", metavar="DIR", help="the unpacked wheel of vllm-omni 0.30")
    arguments = parser.parse_args(argv)
    show(asyncio.run(run(arguments.rounds, arguments.omni)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
