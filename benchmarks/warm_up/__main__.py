"""What the first call after *ready* costs, against the next ones.

`python -m benchmarks.warm_up`: fresh starts of the real services with the demonstration checkpoint,
each followed by the same spoken answers one after the other. Each start is printed: seconds to the
first audio and to the end, and per process the CPU seconds and page faults of the first call over
those of the second. The medians of the ratios follow.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import antiphon
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Launcher, Running
from antiphon_tools.launcher.plan import application_root

CALLS = 3
# Fields of /proc/PID/stat, counted from behind the process's name.
_MINOR_FAULTS, _USER_TICKS, _SYSTEM_TICKS = 7, 11, 12


class Cost(NamedTuple):
    """Of one call: seconds, and by process CPU seconds and page faults."""

    first_audio_s: float
    whole_s: float
    cpu_s: dict[str, float]
    faults: dict[str, int]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--model", type=Path, default=application_root() / "models/antiphon-demo")
    parser.add_argument("--prompt", default="What is antiphon?")
    arguments = parser.parse_args()
    asyncio.run(_measure(arguments))


async def _measure(arguments: argparse.Namespace) -> None:
    starts = [await _start(arguments.model, arguments.prompt) for _ in range(arguments.starts)]
    for name in ("first_audio_s", "whole_s"):
        ratios = [getattr(first, name) / getattr(second, name) for first, second, *_ in starts]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name}: first / second, median {statistics.median(ratios):.2f} ({spread})")


async def _start(model: Path, prompt: str) -> list[Cost]:
    """A start and its calls."""
    async with (
        Launcher(local_deployment(model)) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        await client.server_info()
        calls = [await _call(running, client, prompt) for _ in range(CALLS)]
    audio = ", ".join(f"{each.first_audio_s * 1e3:.0f}" for each in calls)
    whole = ", ".join(f"{each.whole_s * 1e3:.0f}" for each in calls)
    print(f"audio after {audio} ms, whole after {whole} ms")
    first, second, *_ = calls
    for name in first.cpu_s:
        print(
            f"  {name}: CPU {first.cpu_s[name] * 1e3:.0f} / {second.cpu_s[name] * 1e3:.0f} ms, "
            f"page faults {first.faults[name]} / {second.faults[name]}",
            flush=True,
        )
    return calls


async def _call(running: Running, client: antiphon.AsyncClient, prompt: str) -> Cost:
    before = _usage(running)
    began, first_audio_s = time.perf_counter(), 0.0
    async for event in client.generate(prompt):
        if isinstance(event, antiphon.AudioDelta) and not first_audio_s:
            first_audio_s = time.perf_counter() - began
    whole_s = time.perf_counter() - began
    after = _usage(running)
    cpu_s = {name: after[name][0] - before[name][0] for name in after}
    faults = {name: after[name][1] - before[name][1] for name in after}
    return Cost(first_audio_s, whole_s, cpu_s, faults)


def _usage(running: Running) -> dict[str, tuple[float, int]]:
    """CPU seconds and page faults so far, by process."""
    usage = {}
    for name, process in running.processes.items():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
        usage[name] = (ticks / os.sysconf("SC_CLK_TCK"), int(fields[_MINOR_FAULTS]))
    return usage


if __name__ == "__main__":
    main()
