"""Speed of the thinker engine: `python -m benchmarks.engines.thinker --help`.

Two measurements, in rounds that interleave all sides, on random weights that never end a
reply by themselves, in CPU time of the thread that runs them (others may share the machine):
- ids per second with 1, 4, 16, ... sessions at once, against one after the other and
  against Hugging Face's `generate` of the thinker at batch 1;
- the longest gap between two ids of running replies while a long prompt arrives: prefilled
  in chunks, prefilled whole, and when nothing arrives.
Prints medians with their spread, and ratios of medians.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration
from transformers.utils import logging

from antiphon.conversation import Conversation, ConversationMessage, TextPart, to_tensors
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.files import read_config
from antiphon.runtime.engine import Completed, Emitted, Failed, InputChunk, SegmentSettings
from antiphon.segment import FinishReason, SegmentKey
from antiphon.testing.qwen3_omni.tiny_checkpoint import SMALL, build_tiny_checkpoint
from services.qwen3_omni.thinker.load import DEFAULT_SAMPLING, load
from services.thinker.engine import PREFILL_ROWS, ThinkerEngine

SHAPES = {
    "tiny": SMALL,
    "wide": dataclasses.replace(
        SMALL, hidden=1024, layers=3, heads=16, kv_heads=4, head_dim=128,
        experts=16, experts_per_token=4, expert_intermediate=384,
    ),
}  # fmt: skip
TEXT_ONLY = frozenset({"text"})
RUNNING = 4
"""Sessions that decode while the long prompt arrives."""
QUIET_STEPS = 16


@dataclass(slots=True)
class Side:
    """One of the things compared, and what its rounds gave."""

    name: str
    run: Callable[[], float]
    figures: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Of all rounds."""
        return statistics.median(self.figures)


class Thinkers:
    """Engines and Hugging Face's thinker over one checkpoint."""

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
        """Ids per second of so many sessions at once."""
        self.chunked.forget()
        running = {self._start(self.chunked, _question(n), self._tokens) for n in range(sessions)}
        started = time.thread_time()
        ids = 0
        while running:
            ids += len(_step(self.chunked, running))
        return ids / (time.thread_time() - started)

    def one_by_one(self, sessions: int) -> float:
        """Ids per second of so many sessions, each begun when the last has ended."""
        self.chunked.forget()
        started = time.thread_time()
        ids = 0
        for number in range(sessions):
            running = {self._start(self.chunked, _question(number), self._tokens)}
            while running:
                ids += len(_step(self.chunked, running))
        return ids / (time.thread_time() - started)

    def generate(self) -> float:
        """Ids per second of Hugging Face's `generate`."""
        text = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": _question(0)}], tokenize=False, add_generation_prompt=True
        )
        started = time.thread_time()
        inputs = self._tokenizer(text, return_tensors="pt")
        out = self._reference.generate(**inputs, max_new_tokens=self._tokens, do_sample=False)
        count = out.shape[1] - inputs["input_ids"].shape[1]
        return float(count / (time.thread_time() - started))

    def longest_gap(self, engine: ThinkerEngine, *, arrives: bool) -> float:
        """Milliseconds between two ids of running replies, the most, while a prompt arrives."""
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
        """A new segment that asks something."""
        self._segments += 1
        key = SegmentKey("benchmark", self._segments)
        sampling = dataclasses.replace(DEFAULT_SAMPLING, max_tokens=tokens)
        conversation = Conversation((ConversationMessage("user", (TextPart(words),)),), ())
        chunk = InputChunk("input", 0, to_tensors(conversation), True, FinishReason.STOP)
        engine.admit(key, SegmentSettings("", sampling, TEXT_ONLY))
        engine.accept(key, chunk)
        return key


def _step(engine: ThinkerEngine, running: set[SegmentKey]) -> list[SegmentKey]:
    """Whose ids came; those that have ended are taken out of `running`."""
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
    """Some twenty words that begin differently for every number."""
    return f"{number} of the people ask: " + "what is the time of the water? " * 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = _endless_checkpoint(Path(directory) / "checkpoint", options.shape)
        slots = max(*options.sessions, RUNNING + 1)
        thinkers = Thinkers(checkpoint, slots, options.tokens, options.prompt)
        sides = _sides(thinkers, options.sessions)
        for side in sides:
            side.run()
        for _ in range(options.rounds):
            for side in sides:
                side.figures.append(side.run())
    _print(sides, options)
    return 0


def _endless_checkpoint(directory: Path, shape: str) -> Path:
    """A checkpoint whose replies end by their limit alone."""
    build_tiny_checkpoint(directory, SHAPES[shape])
    stop = read_config(directory)["im_end_token_id"]
    for path in directory.glob("*.safetensors"):
        tensors = load_file(path)
        head = tensors.get("thinker.lm_head.weight")
        if head is not None:
            head[stop] = 0.0
            save_file(tensors, path, metadata={"format": "pt"})
    return directory


def _sides(thinkers: Thinkers, sessions: Sequence[int]) -> list[Side]:
    """Everything that is compared, in the order of a round."""
    chunked, whole = thinkers.chunked, thinkers.whole
    together = [
        Side(f"together {n}", lambda n=n: thinkers.together(n))  # type: ignore[misc]
        for n in sessions
    ]
    return [
        Side("generate", thinkers.generate),
        Side("one by one", lambda: thinkers.one_by_one(4)),
        *together,
        Side("gap, nothing arrives", lambda: thinkers.longest_gap(chunked, arrives=False)),
        Side("gap, chunked", lambda: thinkers.longest_gap(chunked, arrives=True)),
        Side("gap, whole", lambda: thinkers.longest_gap(whole, arrives=True)),
    ]


def _print(sides: Sequence[Side], options: argparse.Namespace) -> None:
    """Every side's median and range, and the ratios."""
    by_name = {side.name: side for side in sides}
    alone, reference = by_name["one by one"], by_name["generate"]
    quiet = by_name["gap, nothing arrives"]
    print(f"shape {options.shape}, {options.tokens} ids a reply, {options.rounds} rounds")
    for side in sides:
        low, high = min(side.figures), max(side.figures)
        is_gap = side.name.startswith("gap")
        line = f"{side.name:22} {side.median:9.1f} ({low:.1f} to {high:.1f}) "
        if is_gap:
            line += f"ms, {side.median / quiet.median:.1f} x quiet"
        else:
            line += f"ids/s, {side.median / alone.median:.2f} x one by one, "
            line += f"{side.median / reference.median:.2f} x generate"
        print(line)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
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
