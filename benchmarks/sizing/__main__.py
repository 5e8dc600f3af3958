"""`python -m benchmarks.sizing --rate R`: a real run beside its simulation.

Starts the checkpoint that comes with the repository, with steps as long as those of an accelerator
(`pace.py`). One session alone tells what event loops and the network take; then requests come at a
rate, through the gateway's HTTP door, and the simulation predicts their first audio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

import msgspec

from antiphon.deployment.schema import Deployment, StageConfig
from benchmarks.sizing.pace import SESSION_S, SLOTS, STEP_S
from tools.launcher.console import Console
from tools.launcher.launcher import Launcher
from tools.launcher.plan import GATEWAY, application_root, resolve, with_gateway
from tools.launcher.process import ServiceProcess
from tools.load.options import read_options
from tools.load.result import Result
from tools.load.target import LOOPBACK, target_at
from tools.load.trials import load_service
from tools.sizing.calibration import calibrated
from tools.sizing.comparison import compared, comparison_lines, speech_s
from tools.sizing.measured import MeasuredPipeline, measured_of
from tools.sizing.offered import OfferedCall

TOKENS_PER_S = 3.7
"""Of the text, per second of audio, in requests to repeat twelve words."""


class PacedLauncher(Launcher):
    """Starts stages whose steps take as long as they are told."""

    async def _start_process(self, name: str, argv: Sequence[str]) -> ServiceProcess:
        if argv[0] == "services":
            argv = ("benchmarks.sizing.paced_stage", *argv[1:])
        return await super()._start_process(name, argv)


def measured_pace() -> MeasuredPipeline:
    """What `pace.py` says, as a file of measurements would."""
    makes = ("tokens", "frames", "audio")
    stages = {
        role: {
            "makes": made,
            "slots": SLOTS,
            "step_s": {1: step_s + SESSION_S, 64: step_s + 64 * SESSION_S},
            "steps_before": int(made == "tokens"),
            "pace_s": 0.018 if made == "tokens" else 0.0,
            "rows_per_step": 32 if made == "audio" else 256,
        }
        for (role, step_s), made in zip(STEP_S.items(), makes, strict=True)
    }
    return measured_of({"stages": stages, "gateway": {"call_s": 0.0, "message_s": 0.0}})


async def measure(given: argparse.Namespace, console: Console) -> tuple[Result, Result]:
    """One session alone, and the rate."""
    stage = StageConfig(slots=SLOTS)
    deployment, _ = resolve(Deployment(stages=dict.fromkeys(STEP_S, stage)), application_root())
    doors = {"http_listen": LOOPBACK, "grpc_listen": LOOPBACK}
    async with PacedLauncher(with_gateway(deployment, doors), report=console) as running:
        target = target_at(GATEWAY, running.http_url)
        results = []
        alone = ["--sessions", "1", "--seconds", f"{given.alone:g}", "--warm-up", "2"]
        rate = ["--rate", f"{given.rate:g}", "--seconds", f"{given.seconds:g}"]
        for arguments in (alone, [*rate, "--seed", str(given.seed)]):
            options = read_options([GATEWAY, "--target", running.http_url, *arguments])
            results.append(await load_service(options, target, sys.stdout))
    return results[0], results[1]


def main() -> int:
    """Measure, predict, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sizing", description="A real run beside its simulation."
    )
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second (1)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of that rate (60)")
    parser.add_argument("--alone", type=float, default=10.0, help="seconds of one session (10)")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals (0)")
    given = parser.parse_args()
    console = Console(sys.stdout, output=False)
    alone, run = asyncio.run(measure(given, console))
    text, audio = alone.metrics["ttft"], alone.metrics["ttfa"]
    assert text is not None
    assert audio is not None
    seconds = speech_s(alone)
    one = OfferedCall(0, 0.0, 1, round(seconds * TOKENS_PER_S), round(seconds / 0.08))
    measured = calibrated(measured_pace(), one, text.p50, audio.p50)
    about = {
        "alone_text_s": text.p50,
        "alone_audio_s": audio.p50,
        "call_s": measured.gateway.call_s,
        "network_s": measured.network_s,
        "speech_s": seconds,
        "machine": alone.settings.get("machine"),
        "load": run.settings.get("load average at end"),
    }
    print(json.dumps(about))
    comparison = compared(measured, run, dict.fromkeys(measured.stages, 1), TOKENS_PER_S)
    print("\n".join(comparison_lines([comparison])))
    print(json.dumps(msgspec.to_builtins(comparison, str_keys=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
