"""Serves a model from a checkout, as a child process of `benchmarks.pipeline.checkouts`.

The script is run with the import roots of another checkout. It therefore only uses features that
all checkouts have. Each line of standard input contains the number of concurrent requests, and the
number of tokens and frames of each answer. Each line of standard output is JSON. It contains the
CPU time of the services per session by process, the median time to first audio, and the time until
all answers were complete, in milliseconds.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import statistics
import sys
import time
from pathlib import Path

# In a checkout without import roots, the packages have other names.
if not Path("tools/antiphon_tools").is_dir():
    sys.modules["antiphon_tools"] = importlib.import_module("tools")
    sys.modules["antiphon_testkit"] = importlib.import_module("antiphon.testing")

import antiphon
from antiphon import SamplingRequest
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Launcher

QUESTION = "day one"
_PROCESS_CLOCK = 2


def cpu_ms(pid: int) -> float:
    """Return the CPU time of a process in milliseconds. See `benchmarks.comparison.processes`."""
    return 1e3 * time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)


async def ask(client: antiphon.AsyncClient, tokens: int, frames: int) -> tuple[float, int]:
    """Request an answer. Returns the time to first audio in seconds and the number of samples."""
    started, first_s, samples = time.perf_counter(), 0.0, 0
    async for event in client.generate(
        QUESTION,
        temperature=0.0,
        max_tokens=tokens,
        sampling={"talker": SamplingRequest(temperature=0.0, max_tokens=frames + 1)},
    ):
        if isinstance(event, antiphon.AudioDelta):
            first_s = first_s or time.perf_counter() - started
            samples += len(event.pcm16) // 2
    return first_s, samples


async def serve(model: Path) -> None:
    """Process commands until standard input ends."""
    async with (
        Launcher(local_deployment(model)) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        pids = {name: process.pid for name, process in sorted(running.processes.items())}
        print(json.dumps({"ready": list(pids)}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            sessions, tokens, frames = map(int, line.split())
            before = {name: cpu_ms(pid) for name, pid in pids.items()}
            started = time.perf_counter()
            taken = await asyncio.gather(*(ask(client, tokens, frames) for _ in range(sessions)))
            total_s = time.perf_counter() - started
            used = {name: (cpu_ms(pid) - before[name]) / sessions for name, pid in pids.items()}
            answer = {
                "samples": sum(samples for _, samples in taken),
                "figures": {
                    "CPU of a session, ms": sum(used.values()),
                    **{f"CPU of {name}, ms": each for name, each in used.items()},
                    "first audio, ms": 1e3 * statistics.median(first_s for first_s, _ in taken),
                    "total, ms": 1e3 * total_s,
                },
            }
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
