"""Compares the engines of two checkouts: `python -m benchmarks.engines.trees --against DIR`.

DIR is the baseline. Both checkouts run this checkout's `tree_worker.py` in a separate process with
the following engines: the thinker, talker and code2wav of Qwen3-Omni in a tiny and a medium size,
the talker and token2wav of Qwen2.5-Omni, and the talker and code2wav of Qwen3-TTS. Loads alternate
between the checkouts and between engines, in reverse order in every other round. Each start of the
processes is another set of rounds. Both use the same checkpoints with random weights.

The figures are CPU time of the engine's thread in milliseconds. The output is compared as well.
Greedy tokens and codes must be identical.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers.utils import logging

from antiphon.pipelines.files import read_config
from antiphon_testkit.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint as build_omni25
from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint
from antiphon_testkit.qwen3_tts.tiny_checkpoint import build_tiny_tts
from antiphon_tools.launcher.plan import import_path
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import in_order, show_now, spread
from benchmarks.engines import talker, thinker

HERE = Path(__file__).parents[2]
TINY = talker.SHAPES["tiny"]
MEDIUM = dataclasses.replace(
    talker.SHAPES["wide"],
    **{
        name: getattr(thinker.SHAPES["wide"], name)
        for name in (
            "hidden", "layers", "heads", "kv_heads", "head_dim", "experts", "experts_per_token",
            "expert_intermediate",
        )
    },
)  # fmt: skip


def write_checkpoints(directory: Path, sizes: Sequence[str]) -> None:
    """Write checkpoints whose replies and speech only end at their limits."""
    for size in sizes:
        omni = directory / f"qwen3_omni-{size}"
        build_tiny_checkpoint(omni, MEDIUM if size == "medium" else TINY)
        config = read_config(omni)
        _never(omni, "thinker.lm_head.weight", [config["im_end_token_id"]])
        stop = config["talker_config"]["codec_eos_token_id"]
        _never(omni, "talker.codec_head.weight", [stop])
    if "tiny" in sizes:
        omni25, tts = directory / "qwen2_5_omni", directory / "qwen3_tts"
        build_omni25(omni25)
        told = read_config(omni25)["talker_config"]
        stops = [told["tts_codec_end_token_id"], told["tts_codec_pad_token_id"]]
        _never(omni25, "talker.codec_head.weight", stops)
        build_tiny_tts(tts)
        stop = read_config(tts)["talker_config"]["codec_eos_token_id"]
        _never(tts, "talker.codec_head.weight", [stop])


def _never(directory: Path, name: str, ids: Sequence[int]) -> None:
    """Make these tokens unlikely by setting their logits to 0."""
    for path in directory.glob("*.safetensors"):
        tensors = load_file(path)
        if name in tensors:
            tensors[name][list(ids)] = 0.0
            save_file(tensors, path, metadata={"format": "pt"})


class Checkout:
    """A worker process for one checkout."""

    def __init__(self, checkout: Path, checkpoints: Path) -> None:
        # -P prevents imports from the directory of the script, which belongs to this checkout.
        command = [sys.executable, "-P", str(HERE / "benchmarks/engines/tree_worker.py")]
        self.process = subprocess.Popen(
            [*command, str(checkpoints)],
            cwd=checkout,
            env={
                **os.environ,
                "PYTHONPATH": import_path(checkout),
                "TRANSFORMERS_VERBOSITY": "error",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> list[str]:
        """Return the engines that the worker has loaded."""
        names: list[str] = self._answer()["ready"]
        return names

    def run(self, load: str) -> dict[str, Any]:
        """Run a load and return its time and output."""
        assert self.process.stdin is not None
        self.process.stdin.write(load + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def checkouts(against: Path, checkpoints: Path) -> Iterator[dict[str, Checkout]]:
    """Start both workers, and stop them afterwards."""
    made = {"before": Checkout(against, checkpoints), "now": Checkout(HERE, checkpoints)}
    try:
        yield made
    finally:
        for each in made.values():
            each.process.kill()
            each.process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print the results. Returns 1 if greedy output differs."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    options = _options(arguments)
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    outputs: dict[tuple[str, str], set[tuple[Any, ...]]] = defaultdict(set)
    with stated_machine(), tempfile.TemporaryDirectory() as directory:
        write_checkpoints(Path(directory), options.sizes)
        for start in range(options.starts):
            with checkouts(options.against, Path(directory)) as sides:
                ready = [side.ready() for side in sides.values()]
                loads = [each for name in ready[0] for each in _loads(name)]
                loads = [each for each in loads if all(word in each for word in options.only)]
                # The first run of each load is a warm-up.
                for number in range(-1, options.rounds):
                    for at, load in enumerate(in_order(loads, number)):
                        for side in in_order(list(sides), number + at):
                            figures = sides[side].run(load)
                            outputs[load, side].add((figures["digest"], figures["sum"]))
                            if number >= 0:
                                took[load, side].append(figures["ms"])
            show_now(f"start {start + 1} of {options.starts}")
    return _report(took, outputs)


def _loads(name: str) -> list[str]:
    counts = (1, 16) if name.startswith("tiny") else (1, 4)
    if "2wav" in name:
        return [f"{name}|greedy|{count}" for count in counts]
    ways = ("greedy", "sampled") if name.startswith("tiny") else ("greedy",)
    return [f"{name}|{way}|{count}" for way in ways for count in counts]


def _report(
    took: dict[tuple[str, str], list[float]],
    outputs: dict[tuple[str, str], set[tuple[Any, ...]]],
) -> int:
    show_now("\n| load | before, ms | now, ms | ratio of pairs | of the least | output |")
    show_now("|---|--:|--:|--:|--:|---|")
    differs = 0
    for load in dict.fromkeys(load for load, _ in took):
        before, now = took[load, "before"], took[load, "now"]
        ratios = [above / below for above, below in zip(now, before, strict=True)]
        same = outputs[load, "before"] == outputs[load, "now"]
        if not same and "greedy" in load:
            differs += 1
        shown = "equal" if same else f"{outputs[load, 'before']} {outputs[load, 'now']}"
        if not same and "sampled" in load:
            shown = "drawn by other numbers"
        show_now(
            f"| {load.replace('|', ', ')} | {spread(before)} | {spread(now)} "
            f"| {statistics.median(ratios):.3f} | {min(now) / min(before):.3f} | {shown} |"
        )
    return 1 if differs else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines.trees",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--against", type=Path, required=True, metavar="DIR", help="a checkout")
    parser.add_argument("--sizes", nargs="+", choices=("tiny", "medium"), default=["tiny"])
    parser.add_argument("--rounds", type=int, default=5, help="of each start (default: 5)")
    parser.add_argument("--starts", type=int, default=3, help="of both processes (default: 3)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="loads with all these"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
