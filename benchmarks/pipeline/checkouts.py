"""Compares two checkouts as services: `python -m benchmarks.pipeline.checkouts --against DIR`.

DIR is the baseline. Each checkout serves the same tiny checkpoint with its own launcher, gateway
and stages, and its own client asks the same question (`checkout_worker.py`). Both deployments run
at the same time and answer in alternating order. CPU time is that of the gateway and the stages,
without the client. Both sides must return the same number of samples.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint
from antiphon_tools.launcher.plan import import_path
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side
from benchmarks.pipeline.__main__ import SHAPES

HERE = Path(__file__).parents[2]


class ServedCheckout:
    """A worker process that serves a model from a checkout."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.samples: set[int] = set()
        self._answer()

    def measure(self, sessions: int, tokens: int, frames: int) -> Figures:
        """Run concurrent requests and return their figures."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{sessions} {tokens} {frames}\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.samples.add(answer["samples"] // sessions)
        figures: Figures = answer["figures"]
        return figures

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"the worker ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def serving(checkout: Path, model: Path) -> Iterator[ServedCheckout]:
    """Serve a model from a checkout. When the context ends, the deployment is shut down."""
    # -P prevents imports from the directory of the script, which belongs to this checkout.
    command = [sys.executable, "-P", str(HERE / "benchmarks/pipeline/checkout_worker.py")]
    process = subprocess.Popen(
        [*command, str(model)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": import_path(checkout)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield ServedCheckout(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def main() -> int:
    """Run the command line. Returns 1 if the answers differ in length."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pipeline.checkouts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--against", type=Path, required=True, metavar="DIR", help="a checkout")
    parser.add_argument("--rounds", type=int, default=10, help="(default: 10)")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4], help="(default: 1 4)")
    parser.add_argument("--tokens", type=int, default=60, help="of an answer (default: 60)")
    parser.add_argument("--frames", type=int, default=60, help="of an answer (default: 60)")
    given = parser.parse_args()
    with stated_machine(), ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-checkouts-"))
        model = Path(scratch) / "model"
        build_tiny_checkpoint(model, SHAPES["tiny"])
        before = stack.enter_context(serving(given.against.resolve(), model))
        now = stack.enter_context(serving(HERE, model))
        for sessions in given.sessions:
            answers = sessions, given.tokens, given.frames
            sides = [
                Side("now", partial(now.measure, *answers), ("before",)),
                Side("before", partial(before.measure, *answers)),
            ]
            comparison = Comparison(sides, f"{sessions} sessions at once")
            asyncio.run(comparison.run(given.rounds))
            comparison.report()
        same = now.samples == before.samples
        print(f"samples of an answer: before {before.samples}, now {now.samples}", flush=True)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
