"""The pipeline, four services against one process and against Hugging Face.

One interleaved run of: a short and a long reply streamed through the services, the
long one with `whole` delivery, the same three engines in this process without
services, Hugging Face's `generate`, and services and one process again with several
sessions at once. Prints medians with their spread, and ratios of paired rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

import antiphon
from antiphon import Delivery, SamplingRequest
from antiphon.testing.conversations import conversation
from antiphon.testing.local_deployment import local_deployment
from antiphon.testing.qwen3_omni.reference import Case, Reference
from antiphon.testing.qwen3_omni.tiny_checkpoint import TinyShape, build_tiny_checkpoint
from benchmarks.pipeline.one_process import OneProcess
from benchmarks.pipeline.sides import Round, Side, Taken
from tools.launcher.launcher import Launcher, Running
from tools.load.processes import usage_of

# Text and speech go on to their limits, so that every round is the same work.
SHAPES = {
    "tiny": TinyShape(endless_text=True, endless_speech=True),
    # Engines whose steps take milliseconds, as a real model's do on its own device.
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
    """Answer the question through the services."""
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
    """Answer the question with Hugging Face; its first audio comes with its last."""
    case = Case(
        conversation(("user", QUESTION)), thinker_max_tokens=tokens, talker_max_tokens=frames + 1
    )
    started = time.perf_counter()
    reference.run(case)
    seconds = time.perf_counter() - started
    return Taken(seconds, seconds)


def make_sides(
    options: argparse.Namespace,
    directory: Path,
    client: antiphon.AsyncClient,
    running: Running,
) -> list[Side]:
    """What is compared, in the order in which `report` knows them."""
    reference, engines = Reference(directory), OneProcess(directory)
    tokens, frames, sessions = options.tokens, options.frames, options.sessions
    pids = [process.pid for process in running.processes.values()]

    def cpu_s() -> float:
        return time.process_time() + sum(usage_of(pid, 0.0).cpu_s for pid in pids)

    async def through_services(count: int, tokens: int, delivery: Delivery | None) -> list[Taken]:
        asked = (ask(client, tokens, frames, delivery) for _ in range(count))
        return await asyncio.gather(*asked)

    async def here(count: int) -> list[Taken]:
        return await asyncio.to_thread(engines.run, [QUESTION] * count, tokens, frames)

    async def hugging_face() -> list[Taken]:
        return [await asyncio.to_thread(generate, reference, tokens, frames)]

    whole = Delivery.WHOLE
    return [
        Side(f"services, {SHORT_TOKENS} tokens", lambda: through_services(1, SHORT_TOKENS, None)),
        Side(f"services, {tokens} tokens", lambda: through_services(1, tokens, None), cpu_s),
        Side("services, whole", lambda: through_services(1, tokens, whole), cpu_s),
        Side("one process", lambda: here(1)),
        Side("Hugging Face generate", hugging_face),
        Side(
            f"services, {sessions} sessions",
            lambda: through_services(sessions, tokens, None),
            cpu_s,
        ),
        Side(f"one process, {sessions} sessions", lambda: here(sessions)),
    ]


async def measure(options: argparse.Namespace, directory: Path) -> list[Side]:
    """Interleaved rounds of all sides; the first round warms up and is dropped."""
    async with (
        Launcher(local_deployment(directory)) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        sides = make_sides(options, directory, client, running)
        for number in range(options.rounds + 1):
            for side in sides:
                await side.measure()
            print(f"round {number} of {options.rounds}", flush=True)
    for side in sides:
        del side.rounds[0]
    return sides


def report(sides: Sequence[Side]) -> None:
    """Medians, spread and ratios."""
    print(f"\n{'':28}{'first audio, ms':>26}{'total, ms':>26}{'CPU, ms':>26}")
    for side in sides:
        columns = zip(*((r.first_audio_s, r.total_s, r.cpu_s) for r in side.rounds), strict=True)
        cells = "".join(
            f"{1e3 * statistics.median(each):10.1f} "
            f"({1e3 * min(each):5.0f} …{1e3 * max(each):6.0f})"
            for each in columns
        )
        print(f"{side.name:28}{cells}")
    short, long, whole, one, reference, many, many_here = sides
    print("\nratios, medians of paired rounds")
    for name, above, below in (
        (f"{long.name} / {short.name}", long, short),
        (f"{whole.name} / stream", whole, long),
        (f"{reference.name} / stream", reference, long),
        (f"{long.name} / {one.name}", long, one),
        (f"{many.name} / {many_here.name}", many, many_here),
    ):
        pairs = list(zip(above.rounds, below.rounds, strict=True))
        print(
            f"  {name:50} first audio {_ratio(pairs, 'first_audio_s'):6.2f}"
            f"  total {_ratio(pairs, 'total_s'):6.2f}"
        )
    for above, below in ((long, one), (many, many_here)):
        pairs = list(zip(above.rounds, below.rounds, strict=True))
        gap_s = statistics.median(a.first_audio_s - b.first_audio_s for a, b in pairs)
        print(f"  {above.name} minus {below.name:29} first audio {1e3 * gap_s:6.1f} ms")


def _ratio(pairs: Sequence[tuple[Round, Round]], name: str) -> float:
    return statistics.median(getattr(a, name) / getattr(b, name) for a, b in pairs)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("--model", type=Path, help="checkpoint directory (default: by --shape)")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="(default: tiny)")
    parser.add_argument("--tokens", type=int, default=400, help="of a long reply (default: 400)")
    parser.add_argument("--frames", type=int, default=60, help="of its speech (default: 60)")
    parser.add_argument("--sessions", type=int, default=4, help="at once (default: 4)")
    parser.add_argument("--rounds", type=int, default=12, help="interleaved rounds (default: 12)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*repetition_penalty.*")
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.model or Path(scratch) / options.shape
        if options.model is None:
            build_tiny_checkpoint(directory, SHAPES[options.shape])
        report(asyncio.run(measure(options, directory)))


if __name__ == "__main__":
    main()
