"""Inject faults into a deployment on this machine and compare the answers.

A gateway and two replicas of each stage run as processes. In each round, one process is killed,
frozen, slowed down or deprived of file descriptors, or its rings are damaged, while listeners
receive answers. Every answer must be identical to the answer without faults, including all token
IDs, frames and samples. After the round, no stage may hold any resources. If the gateway is killed,
listeners request the rest of their answers when it is available again. A failed check ends the run
and prints the seed that reproduces the rounds.

With `--faults kill` alone, only one answer runs at a time, and each kill hits the replica that
generates it. In this mode, a failed check is reported and the run continues. Use `--replicas 1` to
measure how long it takes until clients receive an error.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphon.client.retrying import Retry
from antiphon.errors import AntiphonError
from antiphon_testkit.qwen3_omni.tiny_checkpoint import TinyShape, build_tiny_checkpoint
from antiphon_tools.chaos import report
from antiphon_tools.chaos.carriers import carriers_of
from antiphon_tools.chaos.faults import KILLED, NAMES
from antiphon_tools.chaos.fleet import running_fleet
from antiphon_tools.chaos.kills import Kill, Kills
from antiphon_tools.chaos.link_totals import LinkTotals
from antiphon_tools.chaos.listener import AnswerListener
from antiphon_tools.chaos.report import BUFFER_S
from antiphon_tools.chaos.rounds import ChaosFound, Round, Rounds
from antiphon_tools.hub.deployment import LocalModel, local_model
from antiphon_tools.hub.settings import add_hub_options, hub_settings
from antiphon_tools.launcher.events import LaunchEvent, Output, Report
from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.load.player import plays_on
from antiphon_tools.warm.launcher import WarmLauncher

SECONDS = 120.0
LITTLE_AHEAD: dict[str, Any] = {
    "max_ahead_seconds": 0.2,
    "max_stage_ahead_seconds": 0.1,
    "max_stage_ahead_positions": 4,
}
"""Limits how far stages can run ahead of playback.

As a result, each stage stays busy while its answer is being played, so that it can be killed during
that time.
"""
ONCE = Retry(attempts=1)
"""Disables the SDK's retries, so that a fault can only be hidden by the deployment itself."""


def main(
    arguments: Sequence[str] | None = None, *, prog: str = "python -m antiphon_tools.chaos"
) -> int:
    """Run the command line and return its exit status."""
    options = _parser(prog).parse_args(arguments)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="antiphon-chaos-") as directory:
            kills = tuple(options.faults) == (KILLED.name,)
            run = _kill if kills else _break
            if asyncio.run(run(options, seed, Path(directory))):
                return 1
    except (ChaosFound, AntiphonError, OSError) as error:
        print(f"FAILED: {error}\nTo repeat the same rounds: --seed {seed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; all processes were stopped")
        return 130
    return 0


def _model(options: argparse.Namespace, directory: Path) -> LocalModel:
    """Return the checkpoint to serve."""
    if options.model is not None:
        return local_model(options.model, hub_settings(options))
    build_tiny_checkpoint(directory / "tiny", TinyShape(endless_speech=True))
    return LocalModel(directory / "tiny")


def _launcher(options: argparse.Namespace) -> type[Launcher]:
    return WarmLauncher if options.warm else Launcher


def _ended(options: argparse.Namespace, count: int, began_at: float) -> bool:
    """Return whether the run is complete.

    By default, a run takes two minutes. Options can set a different time or a number of rounds
    instead.
    """
    seconds = options.seconds or (float("inf") if options.rounds else SECONDS)
    return count == options.rounds or time.monotonic() - began_at >= seconds


async def _kill(options: argparse.Namespace, seed: int, directory: Path) -> bool:
    """Kill replicas during answers and print how much each kill has cost. Returns whether a check
    failed.
    """
    model = _model(options, directory)
    done: list[Kill] = []
    async with (
        running_fleet(
            model.directory,
            options.replicas,
            directory,
            _launcher(options),
            _log(options),
            pipeline=model.pipeline,
            **LITTLE_AHEAD,
        ) as fleet,
        AnswerListener(fleet.running.grpc_address, speed=options.speed, retry=ONCE) as listener,
        carriers_of(fleet) as carriers,
    ):
        kills = Kills(fleet, listener, carriers, seed=seed, roles=options.roles)
        await kills.learn()
        print(f"{len(fleet.stages)} stage processes are running; starting to kill them", flush=True)
        began_at = time.monotonic()
        try:
            async for each in kills.run():
                done.append(each)
                print(report.line(len(done), options.rounds, each), flush=True)
                if _ended(options, len(done), began_at):
                    break
        finally:
            print(report.table(done, kills.missed))
            if options.json is not None:
                settings = {
                    "seed": seed,
                    "replicas": options.replicas,
                    "speed": options.speed,
                    "model": str(options.model or "tiny"),
                    "took_s": round(time.monotonic() - began_at, 1),
                    "load": os.getloadavg(),
                }
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(report.as_json(done, kills.missed, settings))
                print(options.json)
    wrong = [each for each in done if each.found or (each.error and options.replicas > 1)]
    if wrong:
        print(
            f"FAILED: {len(wrong)} of {len(done)} answers are wrong; --seed {seed}", file=sys.stderr
        )
    return bool(wrong)


def _log(options: argparse.Namespace) -> Report:
    """Return a function that logs process events and output, if a log file was requested."""
    if options.log is None:
        return lambda event: None
    options.log.parent.mkdir(parents=True, exist_ok=True)
    log = options.log.open("w", buffering=1)
    began_at = time.monotonic()

    def write(event: LaunchEvent) -> None:
        told = f"{event.service}: {event.line}" if isinstance(event, Output) else event
        print(f"{time.monotonic() - began_at:8.3f} {told}", file=log)

    return write


async def _break(options: argparse.Namespace, seed: int, directory: Path) -> bool:
    """Inject random faults. Raises `ChaosFound` if a check fails."""
    model = _model(options, directory)
    done: list[Round] = []
    totals = LinkTotals()
    async with (
        running_fleet(
            model.directory,
            options.replicas,
            directory,
            _launcher(options),
            _log(options),
            pipeline=model.pipeline,
        ) as fleet,
        AnswerListener(fleet.running.grpc_address, speed=options.speed) as listener,
    ):
        rounds = Rounds(
            fleet,
            listener,
            seed=seed,
            listeners=options.listeners,
            faults=options.faults,
            roles=options.roles,
        )
        await rounds.learn()
        print(
            f"{len(fleet.stages)} stage processes are running; starting to inject faults",
            flush=True,
        )
        began_at = time.monotonic()
        try:
            async for each in rounds.run():
                done.append(each)
                print(_line(len(done), each), flush=True)
                totals.observe(await fleet.links())
                if _ended(options, len(done), began_at):
                    break
        finally:
            print(f"{_table(done)}\n{totals}")
    return False


def _line(number: int, done: Round) -> str:
    worst = max(each.underrun_s for each in done.heard)
    return (
        f"{number:4} {done.fault.name:11} {done.target:12} after {done.after} pieces: "
        f"{len(done.heard)} answers, at worst {1000 * worst:.0f} ms late"
    )


def _table(done: Sequence[Round]) -> str:
    """Return a table that shows the cost of each fault by stage."""
    found: dict[tuple[str, str], list[Round]] = defaultdict(list)
    for each in done:
        found[each.fault.name, each.target.partition("#")[0]].append(each)
    lines = [
        "| fault | stage | rounds | answers | late p50, ms | late p95, ms "
        f"| gaps with {1000 * BUFFER_S:.0f} ms of buffer |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for (fault, role), rounds in sorted(found.items()):
        heard = [each for one in rounds for each in one.heard]
        # At least one listener in a round used the affected replica, and that listener had the
        # longest delay.
        late = sorted(1000 * max(each.underrun_s for each in one.heard) for one in rounds)
        gaps = sum(not plays_on(each.underrun_s, BUFFER_S) for each in heard)
        p95 = late[min(len(late) - 1, int(0.95 * len(late)))]
        lines.append(
            f"| {fault} | {role} | {len(rounds)} | {len(heard)} "
            f"| {statistics.median(late):.0f} | {p95:.0f} | {gaps} |"
        )
    return "\n".join(lines)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=float, help=f"duration ({SECONDS:.0f}, or until all rounds are done)"
    )
    parser.add_argument(
        "--rounds", type=int, default=0, help=("maximum number of rounds (default: no limit)")
    )
    parser.add_argument(
        "--seed",
        type=int,
        help=("seed of the random choices (default: a new one, which is printed)"),
    )
    parser.add_argument(
        "--model",
        help=("checkpoint directory, or ORG/NAME on the hub (default: a generated tiny one)"),
    )
    parser.add_argument("--replicas", type=int, default=2, help="replicas of each stage (2)")
    parser.add_argument("--listeners", type=int, default=4, help="number of concurrent answers (4)")
    parser.add_argument(
        "--speed",
        type=float,
        default=1.0,
        help=("playback speed of the listeners relative to real time (1)"),
    )
    parser.add_argument(
        "--faults",
        nargs="+",
        choices=NAMES,
        default=NAMES,
        help=(f"faults to inject: {', '.join(NAMES)} (all)"),
    )
    parser.add_argument(
        "--roles", nargs="+", default=(), help=("roles of the stages to attack (all)")
    )
    parser.add_argument(
        "--warm",
        action="store_true",
        help=("fork stages from a process that has already imported their libraries"),
    )
    parser.add_argument("--log", type=Path, help="write the output of the processes to this file")
    parser.add_argument(
        "--json", type=Path, help=("write all results to this file (only with `--faults kill`)")
    )
    add_hub_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
