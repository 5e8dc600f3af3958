"""`python -m benchmarks.pipeline.beside WHAT`: the same services with and without one thing.

Two deployments of a tiny checkpoint run side by side and answer in turns, the other one first each
time. `failovers`: keeping what clients have of answers, to continue them, beside
`gateway.failovers` 0. `mutual-tls`: services that prove themselves to each other, beside plain.
Prints, of each, the time and the CPU time of a round by process, and the medians of ratios of
paired rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec.structs import replace

import antiphon
from antiphon.deployment.schema import Deployment
from antiphon.testing.certificates import make_service_certificates
from antiphon.testing.local_deployment import local_deployment
from antiphon.testing.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint
from benchmarks.pipeline.__main__ import SHAPES, ask
from benchmarks.runtime.__main__ import cpu_ns
from gateway.calls.events import AudioProduced, TextProduced
from gateway.calls.failover.delivered import DeliveredOutput
from tools.launcher.launcher import Launcher, Running
from tools.load.machine import load_average, machine

FAILOVERS, MUTUAL_TLS = "failovers", "mutual-tls"
STAGES = ("thinker", "talker", "code2wav")
FRAMES_PER_S, CODES, SAMPLES_PER_FRAME = 12.5, 16, 1920
TOKENS_PER_S = 3.7


@dataclass(frozen=True, slots=True)
class BesideRound:
    """Seconds of one round, and seconds of CPU by process."""

    total_s: float
    first_audio_s: float
    cpu_s: dict[str, float]

    @property
    def all_cpu_s(self) -> float:
        """Of all processes."""
        return sum(self.cpu_s.values())


@dataclass(slots=True)
class BesideArm:
    """One deployment, and what its rounds took."""

    name: str
    client: antiphon.AsyncClient
    running: Running
    rounds: list[BesideRound] = field(default_factory=list)

    async def measure(self, given: argparse.Namespace) -> None:
        """Answer so many at once."""
        before = self._cpu_s()
        began = time.perf_counter()
        asked = (ask(self.client, given.tokens, given.frames) for _ in range(given.sessions))
        taken = await asyncio.gather(*asked)
        total_s = time.perf_counter() - began
        used = {name: cpu_s - before[name] for name, cpu_s in self._cpu_s().items()}
        first_audio_s = statistics.median(each.first_audio_s for each in taken)
        self.rounds.append(BesideRound(total_s, first_audio_s, used))

    def _cpu_s(self) -> dict[str, float]:
        return {name: cpu_ns(each.pid) / 1e9 for name, each in self.running.processes.items()}


def deployments(what: str, model: Path, folder: Path) -> dict[str, Deployment]:
    """The two sides; the second is without."""
    plain = local_deployment(model)
    if what == FAILOVERS:
        return {
            "kept": plain,
            "failovers 0": replace(plain, gateway=replace(plain.gateway, failovers=0)),
        }
    certificates = make_service_certificates(folder, (*STAGES, "gateway"))
    return {"mutual TLS": replace(plain, mutual_tls=certificates), "plain": plain}


async def measure(given: argparse.Namespace, model: Path, folder: Path) -> list[BesideArm]:
    """Interleaved rounds; the first is dropped."""
    async with AsyncExitStack() as stack:

        async def start(name: str, deployment: Deployment) -> BesideArm:
            running = await stack.enter_async_context(Launcher(deployment))
            client = antiphon.AsyncClient(running.grpc_address)
            return BesideArm(name, await stack.enter_async_context(client), running)

        sides = deployments(given.what, model, folder).items()
        arms = [await start(name, deployment) for name, deployment in sides]
        for number in range(given.rounds + 1):
            for arm in arms if number % 2 else reversed(arms):
                await arm.measure(given)
    for arm in arms:
        del arm.rounds[0]
    return arms


def report(arms: list[BesideArm]) -> None:
    """Medians, and ratios of paired rounds."""
    names = sorted(arms[0].rounds[0].cpu_s)
    print(f"| side | time, ms | first audio, ms | {' | '.join(names)} | all CPU, ms |")
    print("|---|" + "--:|" * (len(names) + 3))
    for arm in arms:
        cpu = [statistics.median(each.cpu_s[name] for each in arm.rounds) for name in names]
        cells = [
            statistics.median(each.total_s for each in arm.rounds),
            statistics.median(each.first_audio_s for each in arm.rounds),
            *cpu,
            statistics.median(each.all_cpu_s for each in arm.rounds),
        ]
        print(f"| {arm.name} | {' | '.join(f'{1e3 * each:.1f}' for each in cells)} |")
    with_it, without = arms
    pairs = list(zip(with_it.rounds, without.rounds, strict=True))
    for name, ratios in (
        ("time", [a.total_s / b.total_s for a, b in pairs]),
        ("first audio", [a.first_audio_s / b.first_audio_s for a, b in pairs]),
        ("CPU of all", [a.all_cpu_s / b.all_cpu_s for a, b in pairs]),
        ("CPU of the gateway", [a.cpu_s["gateway"] / b.cpu_s["gateway"] for a, b in pairs]),
    ):
        low, _, high = statistics.quantiles(ratios, n=4)
        print(f"{name}: {statistics.median(ratios):.3f} (quartiles {low:.3f} to {high:.3f})")
    more_s = statistics.median(a.cpu_s["gateway"] - b.cpu_s["gateway"] for a, b in pairs)
    all_s = statistics.median(each.all_cpu_s for each in without.rounds)
    print(f"more CPU of the gateway: {1e3 * more_s:.1f} ms a round, {more_s / all_s:.2%} of all")


def kept_bytes(seconds: float) -> tuple[int, int, float]:
    """What is kept of an answer of so long: its values, the memory that they take, and the seconds
    of CPU for keeping them."""
    frames = round(seconds * FRAMES_PER_S)
    texts = [TextProduced(" word", np.array([7], np.int32)) for _ in range(round(seconds * 3.7))]
    samples = np.zeros(SAMPLES_PER_FRAME, np.float32)
    audio = [
        AudioProduced(samples, np.zeros((1, CODES), np.uint16), each * SAMPLES_PER_FRAME)
        for each in range(frames)
    ]
    began = time.process_time()
    for _ in range(10):
        delivered = DeliveredOutput()
        for event in (*texts, *audio):
            delivered.take(event)
    took_s = (time.process_time() - began) / 10
    tracemalloc.start()
    delivered = DeliveredOutput()
    for event in (*texts, *audio):
        delivered.take(event)
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return delivered.size_bytes, memory, took_s


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pipeline.beside",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=(FAILOVERS, MUTUAL_TLS))
    parser.add_argument("--rounds", type=int, default=16, help="of each (16)")
    parser.add_argument("--sessions", type=int, default=8, help="answers at once (8)")
    parser.add_argument("--tokens", type=int, default=60, help="of one (60)")
    parser.add_argument("--frames", type=int, default=60, help="of one (60)")
    given = parser.parse_args()
    print(f"{machine()}, load {load_average()}, {os.cpu_count()} CPUs")
    if given.what == FAILOVERS:
        for seconds in (10.0, 60.0):
            values, memory, took_s = kept_bytes(seconds)
            print(
                f"kept of {seconds:g} s of speech: {values} bytes of values, {memory} of memory; "
                f"{1e3 * took_s:.2f} ms of CPU"
            )
    with tempfile.TemporaryDirectory(prefix="antiphon-beside-") as scratch:
        model = Path(scratch) / "model"
        build_tiny_checkpoint(model, SHAPES["tiny"])
        report(asyncio.run(measure(given, model, Path(scratch))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
