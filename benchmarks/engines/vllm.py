"""Compares the thinker's engines: `python -m benchmarks.engines.vllm --help`.

This requires vLLM (`make bench-vllm`). All sides use the same checkpoint, which has random weights
and whose replies only end at their limit. The baseline is the stock model. The sides are:

- torch: the thinker's own engine
- vllm, words: the stock model without its audio tower
- vllm, stock: the stock model, without tap and connector
- vllm: with the tap, but without requesting rows
- vllm, all rows: the row of every prompt position is sent

For 1 and 8 concurrent sessions, the benchmark measures the CPU time of this process and of all
processes that the engines have started, the time to the first token, and the time between tokens.
It also measures the time from the start of a process until it is ready. Times other than CPU time
are only reliable on an otherwise idle machine.
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
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import torch

from antiphon.deployment.schema import Deployment, StageConfig, dump_deployment
from antiphon.pipelines.files import read_config
from antiphon.pipelines.qwen3_omni import THINKER
from antiphon.runtime.engine import Completed, Emitted, Engine, Failed, InputChunk, SegmentSettings
from antiphon.values.conversation import Conversation, ConversationMessage, TextPart, to_tensors
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen3_omni.thinker.load import DEFAULT_SAMPLING, load, load_intake
from antiphon_services.qwen3_omni.thinker.vllm_engine.architectures import MODELS
from antiphon_services.thinker.intake import PromptIntake
from antiphon_services.thinker.thinker_segment import PROMPT, TEXT
from antiphon_services.thinker.vllm_engine.engine import VllmThinkerEngine
from antiphon_services.vllm import environment
from antiphon_services.vllm.media import MediaLimits
from antiphon_testkit.qwen3_omni.tiny_checkpoint import OTHER, build_tiny_checkpoint
from antiphon_tools.launcher.events import LaunchEvent
from antiphon_tools.launcher.plan import application_root
from antiphon_tools.launcher.process import ServiceProcess
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import tree_cpu_s
from benchmarks.comparison.rounds import Comparison, Figures, Side

SESSIONS = (1, 8)
CONTEXT_LIMIT = 4096
# Images and videos are not used, so their tower is not built.
HEARING = MediaLimits(image=0, video=0)


STOCK = "vllm, stock"


@dataclass(slots=True)
class EngineRuns:
    """An engine, and a counter for its runs."""

    engine: Engine
    runs: count[int]

    def measure(self, sessions: int, words: int, tokens: int) -> Figures:
        """Start sessions at the same time, and run all of them to their end."""
        run, before_s, started = next(self.runs), tree_cpu_s(), time.perf_counter()
        running: dict[SegmentKey, list[float]] = {}
        for number in range(sessions):
            key = SegmentKey(f"run {run}", number)
            _start(self.engine, key, f"{run} {number} " + "word " * words, tokens)
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
        used_s = tree_cpu_s() - before_s
        first = [1e3 * (each[1] - each[0]) for each in times.values()]
        between = [1e3 * (each[-1] - each[1]) / (len(each) - 2) for each in times.values()]
        return {
            "CPU, ms per id": 1e3 * used_s / (sessions * tokens),
            "first id, ms": statistics.median(first),
            "between ids, ms": statistics.median(between),
        }


def _start(engine: Engine, key: SegmentKey, words: str, tokens: int) -> None:
    sampling = dataclasses.replace(DEFAULT_SAMPLING, max_tokens=tokens)
    conversation = Conversation((ConversationMessage("user", (TextPart(words),)),), ())
    engine.admit(key, SegmentSettings("", sampling, frozenset({PROMPT, TEXT})))
    chunk = InputChunk("input", 0, to_tensors(conversation), True, FinishReason.STOP)
    engine.accept(key, chunk)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print the results."""
    options = _options(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = Path(directory) / "checkpoint"
        build_tiny_checkpoint(checkpoint, dataclasses.replace(OTHER, endless_text=True))
        with stated_machine():
            asyncio.run(_compare(options, checkpoint, Path(directory)))
    return 0


async def _compare(options: argparse.Namespace, checkpoint: Path, directory: Path) -> None:
    if not options.no_start_up:
        start = {
            name: partial(_start_up, name, checkpoint, directory) for name in ("torch", "vllm")
        }
        starts = Comparison([Side(name, each) for name, each in start.items()], "start-up")
        await starts.run(options.rounds, warm_up=0)
        starts.report()
    engines, closes = _engines(checkpoint)
    try:
        for sessions in SESSIONS:
            sides = [
                Side(
                    name,
                    partial(each.measure, sessions, options.words, options.tokens),
                    (STOCK,) if name != STOCK else (),
                )
                for name, each in engines.items()
            ]
            comparison = Comparison(
                sides, f"{sessions} at once, prompts of {options.words} words, {options.tokens} ids"
            )
            await comparison.run(options.rounds)
            comparison.report()
    finally:
        for close in closes:
            close()


def _engines(checkpoint: Path) -> tuple[dict[str, EngineRuns], list[Callable[[], None]]]:
    """Start all engines. Returns them together with functions that stop their processes."""
    config = StageConfig(engine="vllm", context_limit=CONTEXT_LIMIT)
    environment.prepare(config, MODELS)
    from antiphon_services.qwen3_omni.thinker.vllm_engine.checkpoint import vllm_checkpoint
    from antiphon_services.thinker.vllm_engine.loading import load_engine

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
    engines: dict[str, Engine] = {
        "torch": torchs,
        "vllm, words": words,
        STOCK: stock,
        "vllm": tapped,
        "vllm, all rows": asked,
    }
    runs = {name: EngineRuns(engine, count()) for name, engine in engines.items()}
    return runs, [words.close, stock.close, tapped.close, asked.close]


async def _start_up(engine: str, checkpoint: Path, directory: Path) -> Figures:
    """Measure a thinker process from its start until it is ready. CPU time includes its
    shutdown.
    """
    thinker = StageConfig(engine=engine, context_limit=CONTEXT_LIMIT)
    deployment = Deployment(model=str(checkpoint), stages={"thinker": thinker})
    path = directory / "deployment.yaml"
    path.write_bytes(dump_deployment(deployment))
    argv, before_s = ("antiphon_services", "thinker", "--config", str(path)), tree_cpu_s()
    process = await ServiceProcess.start("thinker", argv, root=application_root(), report=_ignore)
    ready_s = await process.wait_ready()
    process.terminate()
    await process.report_exit()
    return {"CPU, s": tree_cpu_s() - before_s, "ready, s": ready_s}


def _ignore(event: LaunchEvent) -> None:
    """Ignore an event of the process."""


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
