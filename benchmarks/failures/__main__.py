"""Fails a stage in every way, some times each, and prints how long each took to be noticed.

`python -m benchmarks.failures`: the real services with a tiny checkpoint on this machine;
`step_timeout_s` of the failing stage is that of a stage on an accelerator.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from antiphon.deployment.schema import StageConfig
from antiphon.testing.qwen3_omni.tiny_checkpoint import TinyShape, build_tiny_checkpoint
from benchmarks.failures.rig import FAILURES, Outcome, deployment_with, fail


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-timeout", type=float, default=5.0, metavar="S")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="antiphon-failures-") as name:
        asyncio.run(_measure(Path(name), arguments.rounds, arguments.step_timeout))


async def _measure(directory: Path, rounds: int, step_timeout_s: float) -> None:
    model = directory / "model"
    build_tiny_checkpoint(model, TinyShape(endless_speech=True))
    config = StageConfig(step_timeout_s=step_timeout_s)
    outcomes: dict[str, list[Outcome]] = {failure.name: [] for failure in FAILURES}
    async with deployment_with(directory, model, config) as (running, stage):
        for _ in range(rounds):
            for failure in FAILURES:
                outcomes[failure.name].append(await fail(running, stage, failure))
    print("| | call ends, s | /health says 503, s | 200 after recovery, s |")
    print("|---|--:|--:|--:|")
    for name, each in outcomes.items():
        cells = (
            _range([outcome.error_s for outcome in each]),
            _range([outcome.down_s for outcome in each]),
            _range([outcome.back_s for outcome in each]),
        )
        print(f"| {name} | {' | '.join(cells)} |")


def _range(seconds: Sequence[float]) -> str:
    middle = statistics.median(seconds)
    return f"{middle:.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    main()
