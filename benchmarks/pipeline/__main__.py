"""Compare the pipeline as four services, in one process, and with Hugging Face's `generate`.

The sides are a short and a long reply streamed through the services, the long reply with `whole`
delivery, the same three engines in this process without services, and `generate`. Services and one
process are also measured with several concurrent sessions. The baselines run in one process. All
sides run on the same cores (by default, on a single core). With more cores, the services run in
parallel, but a single process does not. CPU time includes all processes involved, including the
client.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import torch

import antiphon
from antiphon import Delivery, SamplingRequest
from antiphon_testkit.conversations import conversation
from antiphon_testkit.local_deployment import local_deployment
from antiphon_testkit.qwen3_omni.reference import Case, Reference
from antiphon_testkit.qwen3_omni.tiny_checkpoint import TinyShape, build_tiny_checkpoint
from antiphon_tools.launcher.launcher import Launcher, Running
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import own_and_cpu_s_of
from benchmarks.comparison.rounds import Comparison, Figures, Side
from benchmarks.pipeline.one_process import OneProcess, Taken

# Text and speech continue up to their limits, so that every round performs the same work.
SHAPES = {
    "tiny": TinyShape(endless_text=True, endless_speech=True),
    # Engines whose steps take milliseconds, like those of a real model on a GPU.
    "mid": TinyShape(
        hidden=512,
        layers=8,
        heads=8,
        kv_heads=4,
        head_dim=64,
        expert_intermediate=256,
        talker_hidden=512,
        talker_layers=8,
        talker_heads=8,
        talker_kv_heads=4,
        talker_head_dim=64,
        talker_expert_intermediate=256,
        code_groups=8,
        codebook_size=256,
        predictor_layers=3,
        predictor_heads=8,
        predictor_kv_heads=4,
        predictor_head_dim=64,
        decoder_hidden=128,
        decoder_layers=4,
        decoder_heads=4,
        decoder_kv_heads=4,
        decoder_dim=256,
        endless_text=True,
        endless_speech=True,
    ),
}
SHORT_TOKENS, QUESTION = 20, "day one"


async def ask(
    client: antiphon.AsyncClient, tokens: int, frames: int, delivery: Delivery | None = None
) -> Taken:
    """Request an answer through the services."""
    started, first_audio_s = time.perf_counter(), 0.0
    generation = client.generate(
        QUESTION,
        temperature=0.0,
        max_tokens=tokens,
        delivery=delivery,
        sampling={"talker": SamplingRequest(temperature=0.0, max_tokens=frames + 1)},
    )
    async for event in generation:
        if isinstance(event, antiphon.AudioDelta):
            first_audio_s = first_audio_s or time.perf_counter() - started
    return Taken(first_audio_s, time.perf_counter() - started)


def generate(reference: Reference, tokens: int, frames: int) -> Taken:
    """Generate an answer with Hugging Face. All of its audio is available at the end."""
    case = Case(
        conversation(("user", QUESTION)), thinker_max_tokens=tokens, talker_max_tokens=frames + 1
    )
    started = time.perf_counter()
    reference.run(case)
    seconds = time.perf_counter() - started
    return Taken(seconds, seconds)


async def measure(run: Callable[[], Awaitable[Sequence[Taken]]], pids: Collection[int]) -> Figures:
    """Return the times of answers, and the CPU time of `pids` and of this process."""
    before_s = own_and_cpu_s_of(pids)
    taken = await run()
    return {
        "CPU, ms": 1e3 * (own_and_cpu_s_of(pids) - before_s),
        "total, ms": 1e3 * max(each.total_s for each in taken),
        "first audio, ms": 1e3 * statistics.median(each.first_audio_s for each in taken),
    }


def make_sides(
    options: argparse.Namespace,
    directory: Path,
    client: antiphon.AsyncClient,
    running: Running,
) -> list[Side]:
    """Return the sides to compare."""
    reference, engines = Reference(directory), OneProcess(directory)
    tokens, frames, sessions = options.tokens, options.frames, options.sessions
    pids = [process.pid for process in running.processes.values()]

    async def through_services(count: int, tokens: int, delivery: Delivery | None) -> list[Taken]:
        asked = (ask(client, tokens, frames, delivery) for _ in range(count))
        return await asyncio.gather(*asked)

    async def here(count: int) -> list[Taken]:
        return await asyncio.to_thread(engines.run, [QUESTION] * count, tokens, frames)

    async def hugging_face() -> list[Taken]:
        return [await asyncio.to_thread(generate, reference, tokens, frames)]

    def services(
        name: str, against: str, count: int, tokens: int, delivery: Delivery | None = None
    ) -> Side:
        run = partial(through_services, count, tokens, delivery)
        return Side(name, partial(measure, run, pids), (against,) if against else ())

    stream, one, many = f"services, {tokens} tokens", "one process", f"{sessions} sessions"
    return [
        services(f"services, {SHORT_TOKENS} tokens", "", 1, SHORT_TOKENS),
        services(stream, one, 1, tokens),
        services("services, whole", stream, 1, tokens, Delivery.WHOLE),
        Side(one, partial(measure, partial(here, 1), ())),
        Side("Hugging Face generate", partial(measure, hugging_face, ()), (one,)),
        services(f"services, {many}", f"one process, {many}", sessions, tokens),
        Side(f"one process, {many}", partial(measure, partial(here, sessions), ())),
    ]


async def compare(options: argparse.Namespace, directory: Path) -> None:
    """Run all sides in interleaved rounds and print a report."""
    async with (
        Launcher(local_deployment(directory)) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        sides = make_sides(options, directory, client, running)
        title = f"{options.shape}, {options.cores} of the cores for each side"
        comparison = Comparison(sides, title)
        await comparison.run(options.rounds)
        comparison.report()


def use_cores(count: int) -> None:
    """Restrict this process, and the processes that it starts, to its first `count` cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("--model", type=Path, help="checkpoint directory (default: by --shape)")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="(default: tiny)")
    parser.add_argument("--tokens", type=int, default=400, help="of a long reply (default: 400)")
    parser.add_argument("--frames", type=int, default=60, help="of its speech (default: 60)")
    parser.add_argument("--sessions", type=int, default=4, help="at once (default: 4)")
    parser.add_argument("--rounds", type=int, default=12, help="interleaved rounds (default: 12)")
    parser.add_argument("--cores", type=int, default=1, help="for each side (default: 1)")
    options = parser.parse_args()
    use_cores(options.cores)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*repetition_penalty.*")
    with stated_machine(), tempfile.TemporaryDirectory() as scratch:
        directory = options.model or Path(scratch) / options.shape
        if options.model is None:
            build_tiny_checkpoint(directory, SHAPES[options.shape])
        asyncio.run(compare(options, directory))


if __name__ == "__main__":
    main()
