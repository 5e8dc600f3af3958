"""The thinker's two engines side by side: `python -m benchmarks.engines.vllm --help`.

Needs vLLM (`make bench-vllm`). Sides, in rounds that interleave them, on one checkpoint of
random weights that never ends a reply by itself:
- torch: the thinker's own engine;
- vllm, words: the stock model without its audio tower;
- vllm, stock: the stock model, without tap and connector;
- vllm: with the tap, and nobody asks for rows;
- vllm, all rows: every prompt position's row leaves.
Each gives the wall time to the first id and between ids, with 1 and 8 sessions at once, and
how long the process takes from its start until it serves. Wall time, because the engines
work in processes of their own: trust it on a quiet machine alone.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from antiphon.conversation import Conversation, ConversationMessage, TextPart, to_tensors
from antiphon.deployment.schema import Deployment, StageConfig, dump_deployment
from antiphon.pipelines.files import read_config
from antiphon.pipelines.qwen3_omni import THINKER
from antiphon.runtime.engine import Completed, Emitted, Engine, Failed, InputChunk, SegmentSettings
from antiphon.segment import FinishReason, SegmentKey
from antiphon.testing.qwen3_omni.tiny_checkpoint import OTHER, build_tiny_checkpoint
from services.qwen3_omni.thinker.load import DEFAULT_SAMPLING, load, load_intake
from services.qwen3_omni.thinker.vllm_engine.architectures import MODELS
from services.thinker.intake import PromptIntake
from services.thinker.segment import PROMPT, TEXT
from services.thinker.vllm_engine.engine import VllmThinkerEngine
from services.vllm import environment
from services.vllm.media import MediaLimits
from tools.launcher.events import LaunchEvent
from tools.launcher.plan import application_root
from tools.launcher.process import ServiceProcess

SESSIONS = (1, 8)
CONTEXT_LIMIT = 4096
# Nothing is shown, so no tower for it is built.
HEARING = MediaLimits(image=0, video=0)


@dataclass(slots=True)
class Side:
    """One engine; by number of sessions, milliseconds to the first id and between ids."""

    name: str
    engine: Engine
    first: dict[int, list[float]] = field(default_factory=dict)
    between: dict[int, list[float]] = field(default_factory=dict)

    def run(self, sessions: int, words: int, tokens: int, round_number: int) -> None:
        """One round: sessions that start at once and are all driven to their end."""
        started = time.perf_counter()
        running = {}
        for number in range(sessions):
            key = SegmentKey(f"{self.name} {round_number}", sessions * 100 + number)
            _start(self.engine, key, f"{round_number} {number} " + "word " * words, tokens)
            running[key] = [started]
        times = dict(running)
        while running:
            for event in self.engine.step():
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Emitted) and event.edge == TEXT:
                    times[event.key].append(time.perf_counter())
                if isinstance(event, Completed):
                    self.engine.release(event.key)
                    del running[event.key]
        first = [1000 * (each[1] - each[0]) for each in times.values()]
        between = [1000 * (each[-1] - each[1]) / (len(each) - 2) for each in times.values()]
        self.first.setdefault(sessions, []).append(statistics.median(first))
        self.between.setdefault(sessions, []).append(statistics.median(between))


def _start(engine: Engine, key: SegmentKey, words: str, tokens: int) -> None:
    sampling = dataclasses.replace(DEFAULT_SAMPLING, max_tokens=tokens)
    conversation = Conversation((ConversationMessage("user", (TextPart(words),)),), ())
    engine.admit(key, SegmentSettings("", sampling, frozenset({PROMPT, TEXT})))
    chunk = InputChunk("input", 0, to_tensors(conversation), True, FinishReason.STOP)
    engine.accept(key, chunk)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    options = _options(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = Path(directory) / "checkpoint"
        build_tiny_checkpoint(checkpoint, dataclasses.replace(OTHER, endless_text=True))
        if not options.no_start_up:
            asyncio.run(_print_start_ups(checkpoint, Path(directory), options.rounds))
        sides, closes = _sides(checkpoint)
        try:
            for side in sides:
                side.run(max(SESSIONS), options.words, 8, -1)
                side.first.clear()
                side.between.clear()
            for number in range(options.rounds):
                for side in sides:
                    for sessions in SESSIONS:
                        side.run(sessions, options.words, options.tokens, number)
        finally:
            for close in closes:
                close()
    _print(sides, options)
    return 0


def _sides(checkpoint: Path) -> tuple[list[Side], list[Callable[[], None]]]:
    """All engines, started, and how to end those that have processes."""
    config = StageConfig(engine="vllm", context_limit=CONTEXT_LIMIT)
    environment.prepare(config, MODELS)
    from services.qwen3_omni.thinker.vllm_engine.checkpoint import vllm_checkpoint
    from services.thinker.vllm_engine.loading import load_engine

    intake = load_intake(checkpoint, config)
    everything = dataclasses.replace(intake, row_positions=lambda ids: np.arange(len(ids)))
    known = vllm_checkpoint(read_config(checkpoint))

    def start(intake: PromptIntake, media: MediaLimits, *, tapped: bool) -> VllmThinkerEngine:
        return load_engine(THINKER, checkpoint, config, intake, known, media=media, tapped=tapped)

    torchs = load(checkpoint, StageConfig(engine="torch", context_limit=CONTEXT_LIMIT)).engine
    words = start(intake, MediaLimits(0, 0, 0), tapped=False)
    stock = start(intake, HEARING, tapped=False)
    tapped = start(intake, HEARING, tapped=True)
    asked = start(everything, HEARING, tapped=True)
    sides = [
        Side("torch", torchs),
        Side("vllm, words", words),
        Side("vllm, stock", stock),
        Side("vllm", tapped),
        Side("vllm, all rows", asked),
    ]
    return sides, [words.close, stock.close, tapped.close, asked.close]


async def _print_start_ups(checkpoint: Path, directory: Path, rounds: int) -> None:
    """Seconds from a thinker process's start until it serves."""
    seconds: dict[str, list[float]] = {"torch": [], "vllm": []}
    for _ in range(rounds):
        for engine, taken in seconds.items():
            thinker = StageConfig(engine=engine, context_limit=CONTEXT_LIMIT)
            deployment = Deployment(model=str(checkpoint), stages={"thinker": thinker})
            path = directory / "deployment.yaml"
            path.write_bytes(dump_deployment(deployment))
            argv = ("services", "thinker", "--config", str(path))
            process = await ServiceProcess.start(
                "thinker", argv, root=application_root(), report=_ignore
            )
            taken.append(await process.ready)
            process.terminate()
            await process.report_exit()
    for engine, taken in seconds.items():
        print(f"start-up, {engine}: {_spread(taken)} s")


def _ignore(event: LaunchEvent) -> None:
    """What the process says is not measured."""


def _print(sides: Sequence[Side], options: argparse.Namespace) -> None:
    print(f"prompts of {options.words} words, {options.tokens} ids, {options.rounds} rounds")
    for sessions in SESSIONS:
        (stock,) = (side for side in sides if side.name == "vllm, stock")
        base = statistics.median(stock.between[sessions])
        for side in sides:
            ratio = statistics.median(side.between[sessions]) / base
            print(
                f"{sessions} at once, {side.name:15} first id {_spread(side.first[sessions])} ms, "
                f"between ids {_spread(side.between[sessions])} ms ({ratio:.2f} x stock)"
            )


def _spread(figures: Sequence[float]) -> str:
    return f"{statistics.median(figures):.2f} ({min(figures):.2f} to {max(figures):.2f})"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines.vllm", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--tokens", type=int, default=64, help="ids a reply (default: 64)")
    parser.add_argument("--words", type=int, default=90, help="of a prompt (default: 90)")
    parser.add_argument("--no-start-up", action="store_true", help="leave that out")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
