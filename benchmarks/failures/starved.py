"""Spoken answers on a machine that other processes keep busy: how many are lost.

`python -m benchmarks.failures.starved`: the real services with the demonstration checkpoint,
a number of sessions that ask one answer after the other, and busy loops at normal priority
beside them. `--nice` runs the services at a lower priority than the loops, which starves them much
further and spares the rest of the machine (root). Prints answers, losses and the answers' times.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import antiphon
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.launcher.plan import application_root

ANSWER_S = 600.0


@dataclass
class Counts:
    """Answers that came whole, with their seconds, and why the others did not."""

    answered_s: list[float] = field(default_factory=list)
    lost: collections.Counter[str] = field(default_factory=collections.Counter)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=12, help="busy loops")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--nice", type=int, default=0, help="how much nicer the services are")
    parser.add_argument("--model", type=Path, default=application_root() / "models/antiphon-demo")
    parser.add_argument("--prompt", default="Tell me a story.")
    arguments = parser.parse_args()
    asyncio.run(_measure(arguments))


async def _measure(arguments: argparse.Namespace) -> None:
    counts = Counts()
    os.nice(arguments.nice)
    async with (
        Launcher(local_deployment(arguments.model)) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        await client.generate(arguments.prompt).collect()
        with _busy_loops(arguments.busy, arguments.nice):
            until = time.monotonic() + arguments.seconds
            asking = (
                _ask(client, arguments.prompt, until, counts) for _ in range(arguments.sessions)
            )
            await asyncio.gather(*asking)
    print(f"{len(counts.answered_s)} answers, {counts.lost.total()} lost: {dict(counts.lost)}")
    if counts.answered_s:
        middle, most = statistics.median(counts.answered_s), max(counts.answered_s)
        print(f"seconds an answer took: median {middle:.1f}, most {most:.1f}")


@contextlib.contextmanager
def _busy_loops(count: int, nice: int) -> Iterator[None]:
    """Processes that compute for ever, `nice` steps above this one's priority."""
    program = f"import os; os.nice(-{nice}); exec('while True: pass')"
    loops = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(count)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
        for each in loops:
            each.wait()


async def _ask(client: antiphon.AsyncClient, prompt: str, until: float, counts: Counts) -> None:
    """Ask one answer after the other; each is made once, without retries."""
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_S):
                await client.generate(prompt).collect()
        except antiphon.AntiphonError as error:
            counts.lost[error.message] += 1
        else:
            counts.answered_s.append(time.monotonic() - began)


if __name__ == "__main__":
    main()
