"""Fails a stage in every way, some times each, and prints how long each took to be noticed.

`python -m benchmarks.failures`: the real services with a tiny checkpoint on this machine;
`step_timeout_s` of the failing stage is that of a stage on an accelerator. The failures follow each
other in alternating order; they are not compared with each other.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from functools import partial
from pathlib import Path

from antiphon.deployment.schema import StageConfig
from antiphon_testkit.qwen3_omni.tiny_checkpoint import TinyShape, build_tiny_checkpoint
from antiphon_tools.launcher.launcher import Running
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side
from benchmarks.failures.rig import FAILURES, Failure, Stoppable, deployment_with, fail


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-timeout", type=float, default=5.0, metavar="S")
    arguments = parser.parse_args()
    with stated_machine(), tempfile.TemporaryDirectory(prefix="antiphon-failures-") as name:
        asyncio.run(_measure(Path(name), arguments.rounds, arguments.step_timeout))


async def _measure(directory: Path, rounds: int, step_timeout_s: float) -> None:
    model = directory / "model"
    build_tiny_checkpoint(model, TinyShape(endless_speech=True))
    config = StageConfig(step_timeout_s=step_timeout_s)
    async with deployment_with(directory, model, config) as (running, stage):
        sides = [
            Side(failure.name, partial(_outcome, running, stage, failure)) for failure in FAILURES
        ]
        comparison = Comparison(sides, f"step_timeout_s {step_timeout_s:g}")
        await comparison.run(rounds, warm_up=0)
        comparison.report()


async def _outcome(running: Running, stage: Stoppable, failure: Failure) -> Figures:
    outcome = await fail(running, stage, failure)
    return {
        "call ends, s": outcome.error_s,
        "/health returns 503, s": outcome.down_s,
        "200 after recovery, s": outcome.back_s,
    }


if __name__ == "__main__":
    main()
