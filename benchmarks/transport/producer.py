"""The producers: `python -m benchmarks.transport.producer ARM`.

Each line of stdin names a payload. The response is a line with the measurements of one round. Each
alternative runs in a separate process, so that none of them inherits the heap of another one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field

import ml_dtypes
import msgspec
import numpy as np

from antiphon.values.chunk import Tensors
from benchmarks.transport.arms import arm_named, run_as
from benchmarks.transport.contestants import Contestant, contestant_of


@dataclass(slots=True)
class Measured:
    """The latency of each message of a payload, and their total wall-clock and CPU time.

    All values are in microseconds.
    """

    latency_us: list[float] = field(default_factory=list)
    wall_us: float = 0.0
    cpu_us: float = 0.0

    def add(self, other: Measured) -> None:
        """Add another round."""
        self.latency_us += other.latency_us
        self.wall_us += other.wall_us
        self.cpu_us += other.cpu_us

    def percentile(self, share: int) -> float:
        """Return a percentile of the latency."""
        return float(np.percentile(self.latency_us, share))


def payload(name: str) -> tuple[Tensors, int]:
    """Return the tensors of a payload and the number of messages per round."""
    row = np.arange(2048, dtype=np.float32).astype(ml_dtypes.bfloat16)
    match name:
        case "3.2 KB":
            return {"codes": np.arange(400).reshape(16, 25)}, 60
        case "8 KB":
            return {"rows": np.tile(row, (2, 1))}, 60
        case "192 KB":
            return {"samples": np.zeros(48_000, np.float32)}, 40
        case "4 MB":
            return {"rows": np.tile(row, (1_000, 1))}, 12
        case "41 MB":
            return {"rows": np.tile(row, (10_000, 1))}, 3
        case _:
            return {"rows": np.tile(row, (17_500, 1))}, 5


PAYLOADS = ("3.2 KB", "8 KB", "192 KB", "4 MB", "41 MB")
LONG_PROMPT = "72 MB"


async def measure(
    contestant: Contestant, tensors: Tensors, messages: int, pause_s: float
) -> Measured:
    """Run one round of a payload. The first message is a warm-up and is not measured."""
    measured = Measured()
    await contestant.send(tensors)
    before = await contestant.reports.next()
    own_cpu, started = time.process_time_ns(), time.monotonic_ns()
    arrival = before
    for _ in range(messages):
        if pause_s:
            await asyncio.sleep(pause_s)
        sent_at = time.monotonic_ns()
        await contestant.send(tensors)
        arrival = await contestant.reports.next()
        measured.latency_us.append((arrival.at_ns - sent_at) / 1e3)
    measured.wall_us = (time.monotonic_ns() - started) / 1e3
    measured.cpu_us = (time.process_time_ns() - own_cpu + arrival.cpu_ns - before.cpu_ns) / 1e3
    return measured


async def produce(contestant: Contestant, pause_s: float) -> None:
    """Process requests until stdin is closed."""
    await contestant.start()
    try:
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            measured = await measure(contestant, *payload(line), pause_s)
            sys.stdout.write(msgspec.json.encode(measured).decode() + "\n")
            sys.stdout.flush()
    finally:
        await contestant.stop()


async def _main(name: str) -> None:
    arm = arm_named(name)
    await produce(contestant_of(arm), arm.pause_s)


if __name__ == "__main__":
    run_as(arm_named(sys.argv[1]), _main(sys.argv[1]))
