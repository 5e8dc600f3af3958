"""Measures the speed of the thinker engine: `python -m benchmarks.engines.thinker --help`.

Both comparisons use random weights with which replies only end at their limit. The figures are CPU
time of the thread, because other processes may use the same machine. The following is compared:

- the time per token with 1, 4, 16, ... concurrent sessions, with the same sessions one after
  another, and with Hugging Face's `generate` of the thinker with batch size 1, which is the
  baseline
- the longest step between two tokens of running replies while a long prompt is processed, either in
  chunks or all at once, and without such a prompt
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration
from transformers.utils import logging

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.files import read_config
from antiphon.runtime.engine import Completed, Emitted, Failed, InputChunk, SegmentSettings
from antiphon.values.conversation import Conversation, ConversationMessage, TextPart, to_tensors
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen3_omni.thinker.load import DEFAULT_SAMPLING, load
from antiphon_services.stage.budgets import PREFILL_ROWS
from antiphon_services.thinker.engine import ThinkerEngine
from antiphon_testkit.qwen3_omni.tiny_checkpoint import SMALL, build_tiny_checkpoint
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side

SHAPES = {
    "tiny": SMALL,
    "wide": dataclasses.replace(
        SMALL, hidden=1024, layers=3, heads=16, kv_heads=4, head_dim=128,
        experts=16, experts_per_token=4, expert_intermediate=384,
    ),
}  # fmt: skip
TEXT_ONLY = frozenset({"text"})
RUNNING = 4
"""The number of sessions that generate tokens while the long prompt arrives."""
QUIET_STEPS = 16


class Thinkers:
    """The engines and Hugging Face's thinker, which use the same checkpoint."""

    def __init__(self, directory: Path, slots: int, tokens: int, prompt_rows: int) -> None:
        self._tokens = tokens
        self._prompt_rows = prompt_rows
        config = StageConfig(slots=slots)
        self.chunked = _engine(directory, config, PREFILL_ROWS)
        self.whole = _engine(directory, config, 1 << 20)
        model: Any = Qwen3OmniMoeForConditionalGeneration.from_pretrained(directory)
        self._reference = model.thinker.eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        self._segments = 0

    def together(self, sessions: int) -> float:
        """Return the CPU time per token of concurrent sessions in milliseconds."""
        self.chunked.forget()
        running = {self._start(self.chunked, _question(n), self._tokens) for n in range(sessions)}
        started = time.thread_time()
        ids = 0
        while running:
            ids += len(_step(self.chunked, running))
        return 1e3 * (time.thread_time() - started) / ids

    def one_by_one(self, sessions: int) -> float:
        """Return the CPU time per token in milliseconds for sessions that run one after another."""
        self.chunked.forget()
        started = time.thread_time()
        ids = 0
        for number in range(sessions):
            running = {self._start(self.chunked, _question(number), self._tokens)}
            while running:
                ids += len(_step(self.chunked, running))
        return 1e3 * (time.thread_time() - started) / ids

    def generate(self) -> float:
        """Return the CPU time per token of Hugging Face's `generate` in milliseconds."""
        text = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": _question(0)}], tokenize=False, add_generation_prompt=True
        )
        started = time.thread_time()
        inputs = self._tokenizer(text, return_tensors="pt")
        out = self._reference.generate(**inputs, max_new_tokens=self._tokens, do_sample=False)
        count = out.shape[1] - inputs["input_ids"].shape[1]
        return 1e3 * (time.thread_time() - started) / float(count)

    def longest_gap(self, engine: ThinkerEngine, *, arrives: bool) -> float:
        """Return the CPU time of a step while replies are generated, in milliseconds.

        If a prompt arrives, this is the longest step. Otherwise, it is the median.
        """
        engine.forget()
        running = {self._start(engine, _question(n), 1 << 20) for n in range(RUNNING)}
        for _ in range(2 * RUNNING):
            _step(engine, running)
        if arrives:
            running.add(self._start(engine, "word " * self._prompt_rows, 1))
        gaps: list[float] = []
        while len(running) > RUNNING or len(gaps) < QUIET_STEPS:
            started = time.thread_time()
            _step(engine, running)
            gaps.append(1000 * (time.thread_time() - started))
        for key in running:
            engine.release(key)
        return max(gaps) if arrives else statistics.median(gaps)

    def _start(self, engine: ThinkerEngine, words: str, tokens: int) -> SegmentKey:
        """Start a segment that asks a question."""
        self._segments += 1
        key = SegmentKey("benchmark", self._segments)
        sampling = dataclasses.replace(DEFAULT_SAMPLING, max_tokens=tokens)
        conversation = Conversation((ConversationMessage("user", (TextPart(words),)),), ())
        chunk = InputChunk("input", 0, to_tensors(conversation), True, FinishReason.STOP)
        engine.admit(key, SegmentSettings("", sampling, TEXT_ONLY))
        engine.accept(key, chunk)
        return key


def _step(engine: ThinkerEngine, running: set[SegmentKey]) -> list[SegmentKey]:
    """Run a step and return the segments that received a token.

    Segments that have ended are removed from `running`.
    """
    events = engine.step()
    for event in events:
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Completed):
            engine.release(event.key)
            running.remove(event.key)
    return [each.key for each in events if isinstance(each, Emitted)]


def _engine(directory: Path, config: StageConfig, prefill_rows: int) -> ThinkerEngine:
    engine = load(directory, config, prefill_rows=prefill_rows).engine
    if not isinstance(engine, ThinkerEngine):
        raise TypeError(type(engine))
    return engine


def _question(number: int) -> str:
    """Return a question of about twenty words that starts differently for each number."""
    return f"{number} of the people ask: " + "what is the time of the water? " * 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print the results."""
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = _endless_checkpoint(Path(directory) / "checkpoint", options.shape)
        slots = max(*options.sessions, RUNNING + 1)
        thinkers = Thinkers(checkpoint, slots, options.tokens, options.prompt)
        with stated_machine():
            for title, sides in _comparisons(thinkers, options.sessions).items():
                comparison = Comparison(sides, f"{options.shape}, {title}")
                asyncio.run(comparison.run(options.rounds))
                comparison.report()
    return 0


def _endless_checkpoint(directory: Path, shape: str) -> Path:
    """Create a checkpoint whose replies only end at their limit."""
    build_tiny_checkpoint(directory, SHAPES[shape])
    stop = read_config(directory)["im_end_token_id"]
    for path in directory.glob("*.safetensors"):
        tensors = load_file(path)
        head = tensors.get("thinker.lm_head.weight")
        if head is not None:
            head[stop] = 0.0
            save_file(tensors, path, metadata={"format": "pt"})
    return directory


def _comparisons(thinkers: Thinkers, sessions: Sequence[int]) -> dict[str, list[Side]]:
    """Return the sides to compare, by the title of the comparison."""

    def side(name: str, figure: str, run: Callable[[], float], *against: str) -> Side:
        def measure() -> Figures:
            return {figure: run()}

        return Side(name, measure, against)

    per_id, bare, alone = "CPU, ms per id", "generate", "one by one"
    ids = [
        side(bare, per_id, thinkers.generate),
        side(alone, per_id, partial(thinkers.one_by_one, 4), bare),
    ]
    for count in sessions:
        run = partial(thinkers.together, count)
        ids.append(side(f"{count} at once", per_id, run, bare, alone))
    gap, quiet = "CPU, ms of the longest step", "nothing arrives (a median step)"
    longest = thinkers.longest_gap
    gaps = [side(quiet, gap, partial(longest, thinkers.chunked, arrives=False))]
    for name, engine in (("chunked", thinkers.chunked), ("whole", thinkers.whole)):
        gaps.append(side(name, gap, partial(longest, engine, arrives=True), quiet))
    return {"ids": ids, "a prompt arrives": gaps}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines.thinker", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="(default: tiny)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--tokens", type=int, default=48, help="ids a reply (default: 48)")
    parser.add_argument("--prompt", type=int, default=2000, help="long prompt (default: 2000)")
    parser.add_argument("--threads", type=int, default=1, help="(default: 1)")
    parser.add_argument(
        "--sessions", type=int, nargs="+", default=[1, 4, 16, 64], help="(default: 1 4 16 64)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
