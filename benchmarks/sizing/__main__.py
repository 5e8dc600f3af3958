"""`python -m benchmarks.sizing run | compare`: real runs beside their simulation.

`run` starts the checkpoint that comes with the repository, with steps as long as those of an
accelerator (`pace.py`), and saves what the load test says of one session alone and of requests at
each rate, through the gateway's HTTP endpoint. `compare` lets one session alone tell what event
loops and the network take, and predicts the first audio of all saved runs, whoever made them:
pooled by rate, with the errors that other calls of the same kind might have shown. A run of which
the host took more than `--stolen` of the cores is told and left out: no simulation of a fleet has
that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon_tools.launcher.console import Console
from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.launcher.plan import GATEWAY, application_root, resolve, with_gateway
from antiphon_tools.launcher.process import ServiceProcess
from antiphon_tools.load.options import read_options
from antiphon_tools.load.result import Result
from antiphon_tools.load.target import LOOPBACK, target_at
from antiphon_tools.load.trials import load_service
from antiphon_tools.sizing.calibration import calibrated
from antiphon_tools.sizing.comparison import compared, comparison_lines, pooled, speech_s
from antiphon_tools.sizing.measured import MeasuredPipeline, measured_of
from antiphon_tools.sizing.offered import OfferedCall
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.stolen_time import CoreTicks
from benchmarks.sizing.pace import SESSION_S, SLOTS, STEP_S

STOLEN = "part of the cores that the host took"
ALONE = "alone.json"


class PacedLauncher(Launcher):
    """Starts stages whose steps take as long as they are told."""

    async def _start_process(self, name: str, argv: Sequence[str]) -> ServiceProcess:
        if argv[0] == "antiphon_services":
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
            "pace_s": PIPELINE.edge("tokens").pace_s if made == "tokens" else 0.0,
            "rows_per_step": 32 if made == "audio" else 256,
        }
        for (role, step_s), made in zip(STEP_S.items(), makes, strict=True)
    }
    return measured_of({"stages": stages, "gateway": {"call_s": 0.0, "message_s": 0.0}})


async def measure(given: argparse.Namespace, console: Console) -> None:
    """One session alone, and each rate; each result is saved when it is there."""
    stage = StageConfig(slots=SLOTS)
    deployment, _ = resolve(Deployment(stages=dict.fromkeys(STEP_S, stage)), application_root())
    endpoints = {"http_listen": LOOPBACK, "grpc_listen": LOOPBACK}
    loads: dict[str, list[str]] = {}
    if given.alone:
        loads[ALONE] = ["--sessions", "1", "--seconds", f"{given.alone:g}", "--warm-up", "2"]
    for rate in given.rate:
        arguments = ["--rate", f"{rate:g}", "--seconds", f"{given.seconds:g}"]
        loads[f"rate-{rate:g}.json"] = [*arguments, "--seed", str(given.seed)]
    given.out.mkdir(parents=True, exist_ok=True)
    async with PacedLauncher(with_gateway(deployment, endpoints), report=console) as running:
        target = target_at(GATEWAY, running.http_url)
        for name, arguments in loads.items():
            options = read_options([GATEWAY, "--target", running.http_url, *arguments])
            before = CoreTicks.now()
            result = await load_service(options, target, sys.stdout)
            stolen = before.stolen_until(CoreTicks.now())
            result = replace(result, settings={**result.settings, STOLEN: stolen})
            (given.out / name).write_bytes(msgspec.json.encode(result))
            print(f"{given.out / name}: {stolen:.1%} of the cores stolen", flush=True)


def calibrated_alone(alone: Result) -> tuple[MeasuredPipeline, float]:
    """What one session alone tells of event loops and network; and tokens a second of audio."""
    text, audio, duration = (alone.metrics[name] for name in ("ttft", "ttfa", "duration"))
    assert text is not None
    assert audio is not None
    assert duration is not None
    seconds = speech_s(alone)
    # A message for each token.
    tokens = alone.edges["text"].messages / alone.requests.succeeded
    one = OfferedCall(0, 0.0, 1, round(tokens), round(seconds / 0.08))
    rest_s = duration.mean - audio.mean
    measured = calibrated(measured_pace(), one, text.p50, audio.p50, rest_s)
    about = {
        "answers alone": alone.requests.succeeded,
        "alone_text_s": text.p50,
        "alone_audio_s": audio.p50,
        "alone_rest_s": rest_s,
        "call_s": measured.gateway.call_s,
        "network_s": measured.network_s,
        "step_s": {role: stage.step_curve(1) for role, stage in measured.stages.items()},
        "speech_s": seconds,
        "tokens": tokens,
        "stolen": alone.settings[STOLEN],
        "machine": alone.settings.get("machine"),
    }
    print(json.dumps(about))
    return measured, tokens / seconds


def compare(given: argparse.Namespace) -> None:
    """Predict saved runs, and print them one by one and pooled."""
    measured, tokens_per_s = calibrated_alone(_read(given.alone))
    replicas = dict.fromkeys(measured.stages, 1)
    comparisons = []
    for folder in given.runs:
        for path in sorted(folder.glob("rate-*.json")):
            run = _read(path)
            stolen = float(run.settings[STOLEN])
            kept = stolen <= given.stolen
            print(f"{path}: {stolen:.1%} stolen{'' if kept else ', left out'}")
            comparison = compared(measured, run, replicas, tokens_per_s)
            print("\n".join(comparison_lines([comparison])))
            if kept:
                comparisons.append(comparison)
    print("\nAll that were kept:")
    print("\n".join(comparison_lines(pooled(comparisons))))


def _read(path: Path) -> Result:
    return msgspec.json.decode(path.read_bytes(), type=Result)


def main() -> int:
    """Measure, or predict and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sizing", description="Real runs beside their simulation."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure, and save results")
    run.add_argument("--out", type=Path, required=True, help="folder for the results")
    run.add_argument("--alone", type=float, default=0.0, help="seconds of one session (0)")
    run.add_argument("--rate", type=float, action="append", default=[], help="requests a second")
    run.add_argument("--seconds", type=float, default=60.0, help="of each rate (60)")
    run.add_argument("--seed", type=int, default=0, help="of the arrivals (0)")
    against = commands.add_parser("compare", help="predict saved runs")
    against.add_argument("--alone", type=Path, required=True, help="the result that calibrates")
    against.add_argument("--stolen", type=float, default=0.03, help="most of a run (0.03)")
    against.add_argument("runs", type=Path, nargs="+", help="folders of `run`")
    given = parser.parse_args()
    if given.command == "run":
        with stated_machine():
            asyncio.run(measure(given, Console(sys.stdout, output=False)))
    else:
        compare(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
