"""Measures the speed of the talker engine: `python -m benchmarks.engines.talker --help`.

The figures are CPU time of the thread that runs the engine, because other processes may use the
same machine. The weights are random, and speech only ends at its limit. The following is measured:

- a frame of one session, compared to Hugging Face's `generate` of the talker with batch size 1,
  which is the baseline
- frames of 1, 2, 4, ... sessions in one engine
- a frame of one session after a prompt of 256 to 4096 rows
- the longest step of speaking sessions while a long prompt is processed
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerForConditionalGeneration,
)
from transformers.utils import logging

from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon_services.qwen3_omni.talker.engine import TalkerEngine
from antiphon_services.qwen3_omni.talker.load import DEFAULT_SAMPLING
from antiphon_services.qwen3_omni.talker.model import Talker
from antiphon_testkit.qwen3_omni.tiny_config import make_config
from antiphon_testkit.qwen3_omni.tiny_shape import SMALL, TinyShape
from antiphon_testkit.qwen3_omni.tiny_tokenizer import TOKENIZER
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side
from benchmarks.engines.speakers import Speakers
from benchmarks.engines.stopwatch import ThreadTime

SHAPES = {
    "tiny": replace(SMALL, code_groups=16),
    # The widths of the released talker, with fewer layers.
    "wide": replace(
        SMALL,
        talker_hidden=1024,
        talker_layers=2,
        talker_heads=16,
        talker_kv_heads=2,
        talker_head_dim=128,
        talker_experts=128,
        talker_experts_per_token=6,
        talker_expert_intermediate=384,
        code_groups=16,
        codebook_size=2048,
        predictor_layers=5,
        predictor_heads=16,
        predictor_kv_heads=8,
        predictor_head_dim=128,
    ),
}
SAMPLINGS = {"greedy": replace(DEFAULT_SAMPLING, temperature=0.0), "sampled": DEFAULT_SAMPLING}
WORDS = 512
PROMPT_ROWS = 48
LONG_PROMPT = 4096


class Bench:
    """The weights of a talker, in Hugging Face's module and in an engine."""

    def __init__(self, shape: TinyShape, slots: int, frames: int, context: int) -> None:
        with tempfile.TemporaryDirectory() as directory:
            config: Any = make_config(shape, TOKENIZER.write(Path(directory)))
        self.module = _make_module(config.talker_config)
        self.special = SpecialIds.from_config(config.to_dict())
        words = torch.randn(self.special.tts_eos + WORDS, shape.hidden)
        limit = context + 2 * PROMPT_ROWS + frames
        with torch.inference_mode():
            talker = Talker(
                self.module,
                words,
                self.special,
                code_entries=shape.talker_vocabulary,
                context_limit=limit,
                slots=slots,
            )
        self.frames = frames
        engine = TalkerEngine(talker, limit)
        self.speakers = Speakers(engine, self.special, frames, ThreadTime())
        self.groups, self.kv_bytes = talker.groups, talker.cache.bytes

    def generate(self, sampling: str) -> float:
        """Measure Hugging Face's `generate` in milliseconds per frame, without the prompt."""
        return (self._generate(sampling, self.frames) - self._generate(sampling, 1)) / (
            self.frames - 1
        )

    def speak(self, sampling: str, sessions: int, prompt: int = PROMPT_ROWS) -> float:
        """Measure this engine in milliseconds per step, in which each session generates a frame."""
        return statistics.median(self.speakers.steps_ms(SAMPLINGS[sampling], [prompt] * sessions))

    def disturbed(self, sessions: int) -> float:
        """Return the longest step of speaking sessions while a long prompt is processed, in ms."""
        prompts = [PROMPT_ROWS] * sessions
        return max(self.speakers.disturbed_ms(DEFAULT_SAMPLING, prompts, LONG_PROMPT))

    @torch.inference_mode()
    def _generate(self, sampling: str, frames: int) -> float:
        """Return the time in milliseconds for a number of frames and the prompt."""
        settings, config = SAMPLINGS[sampling], self.module.config
        hidden = config.text_config.hidden_size
        drawing = {"do_sample": False}
        if not settings.greedy:
            drawing = {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0}  # type: ignore[dict-item]
        vocabulary = config.text_config.vocab_size
        with warnings.catch_warnings():
            # The warning states that the penalty does not include the prompt, which is intended.
            warnings.simplefilter("ignore", UserWarning)
            started = time.thread_time()
            self.module.generate(
                inputs_embeds=torch.randn(1, PROMPT_ROWS, hidden),
                trailing_text_hidden=torch.randn(1, 2 * self.frames, hidden),
                tts_pad_embed=torch.randn(1, 1, hidden),
                attention_mask=torch.ones(1, PROMPT_ROWS, dtype=torch.long),
                max_new_tokens=frames + 1,
                min_new_tokens=frames + 1,
                repetition_penalty=settings.repetition_penalty,
                suppress_tokens=list(range(vocabulary - 1024, vocabulary)),
                eos_token_id=config.codec_eos_token_id,
                output_hidden_states=True,
                return_dict_in_generate=True,
                **drawing,
            )
            return (time.thread_time() - started) * 1e3


def _make_module(config: Any) -> Any:
    """Return Hugging Face's talker with random weights that rarely draw the stop code."""
    torch.manual_seed(0)
    module: Any = Qwen3OmniMoeTalkerForConditionalGeneration(config)
    module.train(False)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
        module.codec_head.weight[config.codec_eos_token_id] = 0.0
    return module


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print the results."""
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    slots = max(*options.sessions, 17)
    context = max(*options.contexts, LONG_PROMPT)
    bench = Bench(SHAPES[options.shape], slots, options.frames, context)
    print(
        f"{options.shape}: {bench.groups} code groups, float32, {options.threads} thread, "
        f"{options.frames} frames, {options.rounds} rounds; {slots} slots of "
        f"{context + 2 * PROMPT_ROWS + options.frames} positions: {bench.kv_bytes / 1e6:.0f} MB\n"
    )
    with stated_machine():
        for title, sides in _comparisons(bench, options).items():
            comparison = Comparison(sides, f"{options.shape}, {title}")
            asyncio.run(comparison.run(options.rounds))
            comparison.report()
    return 0


def _measure(run: Callable[[], float], frames: int) -> Figures:
    """Return the CPU time per frame of a `run` whose steps generate this number of frames."""
    step_ms = run()
    return {"CPU, ms per frame": step_ms / frames, "CPU, ms per step": step_ms}


def _comparisons(bench: Bench, options: argparse.Namespace) -> dict[str, list[Side]]:
    """Return the sides to compare, by the title of the comparison."""

    def side(name: str, run: Callable[[], float], *against: str, frames: int = 1) -> Side:
        return Side(name, partial(_measure, run, frames), against)

    found = {}
    for sampling in SAMPLINGS:
        sides = [side("generate", partial(bench.generate, sampling))]
        for count in options.sessions:
            against = ("generate", "1 sessions") if count > 1 else ("generate",)
            run = partial(bench.speak, sampling, count)
            sides.append(side(f"{count} sessions", run, *against, frames=count))
        found[sampling] = sides
    least = f"after {options.contexts[0]} rows"
    found["prompts"] = [
        side(
            f"after {rows} rows",
            partial(bench.speak, "sampled", 1, rows),
            *((least,) if f"after {rows} rows" != least else ()),
        )
        for rows in options.contexts
    ]
    if options.disturbed:
        undisturbed = "16 sessions, a step"
        found["a prompt arrives"] = [
            side(undisturbed, partial(bench.speak, "sampled", 16)),
            side("16 sessions, longest step", partial(bench.disturbed, 16), undisturbed),
        ]
    return found


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines.talker",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="(default: tiny)")
    parser.add_argument("--frames", type=int, default=20, help="of a session (default: 20)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--threads", type=int, default=1, help="(default: 1)")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--disturbed", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args(arguments)
    if 1 not in options.sessions or options.frames < 2:
        parser.error("--sessions must have 1, and --frames be at least 2")
    return options


if __name__ == "__main__":
    sys.exit(main())
