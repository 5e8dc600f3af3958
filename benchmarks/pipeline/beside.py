"""`python -m benchmarks.pipeline.beside WHAT`: compare services with and without a feature.

Two deployments of a tiny checkpoint run at the same time and answer in alternating order. With
`failovers`, the gateway stores the output that clients have received, so that answers can be
continued. The baseline sets `gateway.failover.failovers` to 0. With `mutual-tls`, services
authenticate each other. The baseline uses plaintext. With `ring`, chunks between stages go through
rings in shared memory. The baseline sends them on gRPC streams. CPU time is that of all processes
of a side, without the client.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import tracemalloc
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

import antiphon
from antiphon.deployment.schema import Deployment
from antiphon.deployment.stage_config import LinkConfig, StageConfig
from antiphon_gateway.failover.delivered import DeliveredOutput
from antiphon_gateway.sessions.events import AudioProduced, Event, TextProduced
from antiphon_testkit.certificates import make_service_certificates
from antiphon_testkit.gateway_settings import with_settings
from antiphon_testkit.local_deployment import local_deployment
from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint
from antiphon_tools.launcher.launcher import Launcher, Running
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import process_cpu_s
from benchmarks.comparison.rounds import Comparison, Figures, Measure, Side
from benchmarks.pipeline.__main__ import SHAPES, ask

FAILOVERS, MUTUAL_TLS, RING = "failovers", "mutual-tls", "ring"
STAGES = ("thinker", "talker", "code2wav")
FRAMES_PER_S, CODES, SAMPLES_PER_FRAME = 12.5, 16, 1920


async def measure(
    given: argparse.Namespace, client: antiphon.AsyncClient, running: Running
) -> Figures:
    """Answer concurrent requests."""

    def cpu_ms() -> dict[str, float]:
        return {name: 1e3 * process_cpu_s(each.pid) for name, each in running.processes.items()}

    before, began = cpu_ms(), time.perf_counter()
    asked = (ask(client, given.tokens, given.frames) for _ in range(given.sessions))
    taken = await asyncio.gather(*asked)
    total_s = time.perf_counter() - began
    used = {name: each - before[name] for name, each in sorted(cpu_ms().items())}
    return {
        "CPU of all, ms": sum(used.values()),
        **{f"CPU of {name}, ms": each for name, each in used.items()},
        "total, ms": 1e3 * total_s,
        "first audio, ms": 1e3 * statistics.median(each.first_audio_s for each in taken),
    }


def deployments(what: str, model: Path, folder: Path) -> dict[str, Deployment]:
    """Return the two sides. The second one is the baseline."""
    plain = local_deployment(model)
    if what == FAILOVERS:
        return {
            "kept": plain,
            "failovers 0": replace(plain, gateway=with_settings(plain.gateway, failovers=0)),
        }
    if what == RING:
        streams = {role: StageConfig(link=LinkConfig(ring=False)) for role in STAGES}
        return {"ring": plain, "stream": local_deployment(model, **streams)}
    certificates = make_service_certificates(folder, (*STAGES, "gateway"))
    return {"mutual TLS": replace(plain, mutual_tls=certificates), "plain": plain}


async def compare(given: argparse.Namespace, model: Path, folder: Path) -> None:
    """Start both deployments, measure them, and print a report."""
    async with AsyncExitStack() as stack:

        async def start(deployment: Deployment) -> Measure:
            running = await stack.enter_async_context(Launcher(deployment))
            client = antiphon.AsyncClient(running.grpc_address)
            return partial(measure, given, await stack.enter_async_context(client), running)

        (with_it, ours), (without, plain) = deployments(given.what, model, folder).items()
        sides = [Side(with_it, await start(ours), (without,)), Side(without, await start(plain))]
        comparison = Comparison(sides, f"{given.what}, {given.sessions} answers at once")
        await comparison.run(given.rounds)
        comparison.report()


def kept_bytes(seconds: float) -> tuple[int, int, float]:
    """Measure the stored output of an answer with this duration.

    Returns the size of its values, the memory that they use, and the CPU time to store them in
    seconds.
    """
    frames = round(seconds * FRAMES_PER_S)
    texts = [TextProduced(" word", np.array([7], np.int32)) for _ in range(round(seconds * 3.7))]
    samples = np.zeros(SAMPLES_PER_FRAME, np.float32)
    audio = [
        AudioProduced(samples, np.zeros((1, CODES), np.uint16), each * SAMPLES_PER_FRAME)
        for each in range(frames)
    ]
    events: list[Event] = [*texts, *audio]
    began = time.process_time()
    for _ in range(10):
        delivered = DeliveredOutput()
        for event in events:
            delivered.take(event)
    took_s = (time.process_time() - began) / 10
    tracemalloc.start()
    delivered = DeliveredOutput()
    for event in events:
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
    parser.add_argument("what", choices=(FAILOVERS, MUTUAL_TLS, RING))
    parser.add_argument("--rounds", type=int, default=16, help="of each (16)")
    parser.add_argument("--sessions", type=int, default=8, help="answers at once (8)")
    parser.add_argument("--tokens", type=int, default=60, help="of one (60)")
    parser.add_argument("--frames", type=int, default=60, help="of one (60)")
    given = parser.parse_args()
    with stated_machine(), tempfile.TemporaryDirectory(prefix="antiphon-beside-") as scratch:
        if given.what == FAILOVERS:
            for seconds in (10.0, 60.0):
                values, memory, took_s = kept_bytes(seconds)
                print(
                    f"kept of {seconds:g} s of speech: {1e3 * took_s:.2f} ms of CPU, "
                    f"{values} bytes of values, {memory} of memory"
                )
        model = Path(scratch) / "model"
        build_tiny_checkpoint(model, SHAPES["tiny"])
        asyncio.run(compare(given, model, Path(scratch)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
