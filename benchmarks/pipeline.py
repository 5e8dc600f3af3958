"""Time to first audio through the whole pipeline: `python -m benchmarks.pipeline --help`.

One interleaved run of: a short and a long reply streamed through the four services,
the long one with `whole` delivery, the same three engines in this process without
services, and Hugging Face's `generate`. Prints medians with their spread, and ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import antiphon
from antiphon import Delivery, SamplingRequest
from antiphon.conversation import to_tensors
from antiphon.deployment.launcher import Launcher
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.qwen3_omni import CODE2WAV, PIPELINE, TALKER, THINKER
from antiphon.runtime.engine import Emitted, InputChunk, LoadedStage, SegmentSettings
from antiphon.runtime.outlet import Outlet
from antiphon.segment import FinishReason, SegmentKey
from antiphon.testing.local_deployment import local_deployment
from antiphon.testing.reference import Case, Reference, conversation
from antiphon.testing.tiny_checkpoint import build_tiny_checkpoint
from services.code2wav import qwen3_omni as code2wav
from services.talker import qwen3_omni as talker
from services.thinker import qwen3_omni as thinker

SHORT_TOKENS, LONG_TOKENS, FRAMES = 20, 400, 60
QUESTIONS = tuple(
    f"{first} {second}"
    for first in ("day", "part", "number", "find", "time", "people", "long", "voice", "water")
    for second in ("one", "two?", "made of words", "and more")
)


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds to the first audio and to the end."""

    first_audio_s: float
    total_s: float


@dataclass(slots=True)
class Side:
    """One of the things compared."""

    name: str
    run: Callable[[], Awaitable[Taken]]
    taken: list[Taken] = field(default_factory=list)


class InProcess:
    """The same engines, called one after the other on one thread, without services."""

    def __init__(self, directory: Path) -> None:
        config = StageConfig()
        self._stages: dict[str, LoadedStage] = {
            THINKER: thinker.load(directory, config),
            TALKER: talker.load(directory, config),
            CODE2WAV: code2wav.load(directory, config),
        }
        self._turns = 0

    def run(self, question: str, tokens: int) -> Taken:
        """Answer a question; chunks go from engine to engine by the same outlet rule."""
        self._turns += 1
        key = SegmentKey("bench", self._turns)
        started, first_audio_s = time.perf_counter(), 0.0
        wanted = {
            THINKER: SamplingRequest(max_tokens=tokens),
            TALKER: SamplingRequest(temperature=0.0, max_tokens=FRAMES + 1),
            CODE2WAV: SamplingRequest(),
        }
        outlets: dict[str, Outlet] = {}
        for role, stage in self._stages.items():
            edges = {edge.name: edge for edge in PIPELINE.outputs(role)}
            sampling = stage.facts.default_sampling.with_request(wanted[role])
            stage.engine.admit(key, SegmentSettings("", sampling, frozenset(edges)))
            outlets |= {
                name: Outlet(edge, edge.delivery, PIPELINE.chunk_policy)
                for name, edge in edges.items()
            }
        tensors = to_tensors(conversation(("user", question)))
        ends = InputChunk("input", 0, tensors, True, FinishReason.STOP)
        self._stages[THINKER].engine.accept(key, ends)
        open_edges = {"audio"}
        while open_edges:
            for stage in self._stages.values():
                if stage.engine.awaited_edge(key) is not None:
                    continue
                for event in stage.engine.step():
                    if not isinstance(event, Emitted):
                        continue
                    self._pass_on(key, event, outlets[event.edge])
                    if event.edge == "audio":
                        first_audio_s = first_audio_s or time.perf_counter() - started
                        if event.finish_reason is not None:
                            open_edges.clear()
        for stage in self._stages.values():
            stage.engine.release(key)
        return Taken(first_audio_s, time.perf_counter() - started)

    def _pass_on(self, key: SegmentKey, event: Emitted, outlet: Outlet) -> None:
        for piece in outlet.push(event.position, event.tensors, event.finish_reason):
            for role in PIPELINE.edge(event.edge).consumers:
                if role in self._stages:
                    ends = piece.finish_reason is not None
                    chunk = InputChunk(
                        event.edge, piece.position, piece.tensors, ends, piece.finish_reason
                    )
                    self._stages[role].engine.accept(key, chunk)


async def ask(
    client: antiphon.AsyncClient, question: str, tokens: int, delivery: Delivery | None
) -> Taken:
    """Answer a question through the services."""
    started, first_audio_s = time.perf_counter(), 0.0
    generation = client.generate(
        question,
        max_tokens=tokens,
        delivery=delivery,
        talker=SamplingRequest(temperature=0.0, max_tokens=FRAMES + 1),
    )
    async for event in generation:
        if isinstance(event, antiphon.AudioDelta):
            first_audio_s = first_audio_s or time.perf_counter() - started
    return Taken(first_audio_s, time.perf_counter() - started)


def generate(reference: Reference, question: str, tokens: int) -> Taken:
    """Answer a question with Hugging Face; its first audio comes with its last."""
    case = Case(
        conversation(("user", question)), thinker_max_tokens=tokens, talker_max_tokens=FRAMES + 1
    )
    started = time.perf_counter()
    reference.run(case)
    seconds = time.perf_counter() - started
    return Taken(seconds, seconds)


async def measure(directory: Path, rounds: int) -> list[Side]:
    """Interleaved rounds of all sides; the first round warms up and is dropped."""
    reference, engines = Reference(directory), InProcess(directory)
    async with (
        Launcher(local_deployment(directory)) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        question = await _longest_answer(client)
        here = asyncio.to_thread
        sides = [
            Side(
                f"services, stream, {SHORT_TOKENS} tokens",
                lambda: ask(client, question, SHORT_TOKENS, None),
            ),
            Side("services, stream, long", lambda: ask(client, question, LONG_TOKENS, None)),
            Side(
                "services, whole, long",
                lambda: ask(client, question, LONG_TOKENS, Delivery.WHOLE),
            ),
            Side("one process, long", lambda: here(engines.run, question, LONG_TOKENS)),
            Side(
                "Hugging Face generate, long",
                lambda: here(generate, reference, question, LONG_TOKENS),
            ),
        ]
        for _ in range(rounds + 1):
            for side in sides:
                side.taken.append(await side.run())
    for side in sides:
        del side.taken[0]
    return sides


async def _longest_answer(client: antiphon.AsyncClient) -> str:
    """The question with the longest reply, and speech of all `FRAMES` frames."""
    lengths: dict[str, int] = {}
    for question in QUESTIONS:
        reply = await client.generate(
            question,
            max_tokens=LONG_TOKENS,
            talker=SamplingRequest(temperature=0.0, max_tokens=FRAMES + 1),
        ).collect()
        if reply.usage.completion_audio_frames == FRAMES:
            lengths[question] = reply.usage.completion_tokens
    best = max(lengths, key=lambda question: lengths[question])
    print(f"question {best!r}: {lengths[best]} tokens, {FRAMES} frames")
    return best


def report(sides: Sequence[Side]) -> None:
    """Medians, spread and ratios."""
    print(f"\n{'':34}{'first audio, ms':>26}{'total, ms':>26}")
    for side in sides:
        cells = "".join(
            f"{statistics.median(each):10.1f} ({min(each):5.0f} …{max(each):6.0f})"
            for each in (
                [1000 * taken.first_audio_s for taken in side.taken],
                [1000 * taken.total_s for taken in side.taken],
            )
        )
        print(f"{side.name:34}{cells}")
    short, long, whole, one, reference = sides
    print("\nratios of first audio, medians of paired rounds")
    for name, above, below in (
        ("long / short reply", long, short),
        ("whole / stream", whole, long),
        ("Hugging Face / stream", reference, long),
        ("services / one process", long, one),
    ):
        pairs = zip(above.taken, below.taken, strict=True)
        ratio = statistics.median(a.first_audio_s / b.first_audio_s for a, b in pairs)
        print(f"  {name:28}{ratio:8.2f}")
    gaps = zip(long.taken, one.taken, strict=True)
    print(
        "services minus one process, first audio: "
        f"{1000 * statistics.median(a.first_audio_s - b.first_audio_s for a, b in gaps):.1f} ms"
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("--model", type=Path, help="checkpoint directory (default: a tiny one)")
    parser.add_argument("--rounds", type=int, default=12, help="interleaved rounds (default: 12)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*repetition_penalty.*")
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.model or Path(scratch) / "tiny"
        if options.model is None:
            build_tiny_checkpoint(directory)
        report(asyncio.run(measure(directory, options.rounds)))


if __name__ == "__main__":
    main()
