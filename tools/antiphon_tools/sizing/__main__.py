"""`python -m antiphon_tools.sizing COMMAND`: plan capacity. `--help` lists the commands."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from antiphon.errors import AntiphonError, InvalidArgument
from antiphon.pipelines.registry import pipeline_of
from antiphon_tools.launcher.plan import GATEWAY
from antiphon_tools.load.result import Result
from antiphon_tools.sizing.calibration import calibrated_by, measured_from
from antiphon_tools.sizing.command_line import command_line
from antiphon_tools.sizing.comparison import compared, comparison_lines
from antiphon_tools.sizing.measured import MeasuredPipeline, load_measured
from antiphon_tools.sizing.offered import Lengths, OfferedLoad
from antiphon_tools.sizing.plan import Goal, Planner
from antiphon_tools.sizing.report import fleet_lines, outcome_as_json, plan_as_json, plan_lines

PROGRESS_S = 2.0


def main(
    arguments: Sequence[str] | None = None, *, prog: str = "python -m antiphon_tools.sizing"
) -> int:
    """Run the command line and return its exit status."""
    given = command_line(prog).parse_args(arguments)
    try:
        _COMMANDS[given.command](given)
    except (AntiphonError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return 0


def _plan(given: argparse.Namespace) -> None:
    goal = Goal(given.first_audio, given.percentile, given.answered)
    planner = _planner(given)
    planner.told(f"Simulating (granularity: {planner.kind}):")
    plan = planner.plan(goal, given.gpu_hour)
    _tell(plan_lines(plan, planner.measured))
    _save(given.json, plan_as_json(plan, planner.load))


def _simulate(given: argparse.Namespace) -> None:
    planner = _planner(given)
    planner.told(f"Simulating (granularity: {planner.kind})")
    outcome = planner.simulate(replicas_of(given.replicas, planner.measured))
    _tell(fleet_lines(outcome))
    _save(given.json, {"load": planner.load, "outcome": outcome_as_json(outcome)})


def _compare(given: argparse.Namespace) -> None:
    measured = load_measured(given.measured)
    replicas = replicas_of(given.replicas, measured)
    comparisons = [
        compared(measured, run, replicas, given.tokens_per_s) for run in _runs(given.run)
    ]
    _tell(comparison_lines(comparisons))
    _save(given.json, {"comparisons": [_plain(each) for each in comparisons]})


def _measured(given: argparse.Namespace) -> None:
    runs = _runs(given.run)
    model = given.model or Path(str(runs[0].settings.get("model") or ""))
    pipeline = pipeline_of(model)
    measured = measured_from(runs, pipeline, slots=given.slots)
    for run in runs:
        if run.service == GATEWAY and run.settings.get("sessions") == 1:
            measured = calibrated_by(measured, run, runs)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_bytes(msgspec.yaml.encode(msgspec.to_builtins(measured, str_keys=True)))
    print(f"saved {given.out}; check it, and set slots and gpus to the planned values")


def _runs(paths: Sequence[Path]) -> list[Result]:
    """Read results of load tests. Raises `InvalidArgument` if a file is not a result."""
    runs = []
    for path in paths:
        try:
            runs.append(msgspec.json.decode(path.read_bytes(), type=Result))
        except msgspec.DecodeError as error:
            raise InvalidArgument(
                f"--run {path}: is not a result of python -m antiphon_tools.load --json: {error}",
                field="run",
            ) from error
    return runs


def _plain(value: object) -> object:
    return msgspec.to_builtins(value, str_keys=True)


def _planner(given: argparse.Namespace) -> Planner:
    measured = load_measured(given.measured)
    speech = Lengths.parse(given.speech, "--speech")
    load = OfferedLoad(
        rate=given.rate,
        seconds=given.seconds,
        warm_up_s=given.warm_up,
        speech_s=Lengths(speech.kind, speech.mean, speech.shape, given.speech_max),
        prompt_rows=Lengths.parse(given.prompt, "--prompt"),
        tokens_per_s=given.tokens_per_s,
        burstiness=given.burstiness,
        seed=given.seed,
    )
    return Planner(measured, load, given.detail, given.gateways, PlanProgress())


def replicas_of(given: Sequence[str], measured: MeasuredPipeline) -> dict[str, int]:
    """Parse `ROLE=N` for some of the stages. Other stages have one replica.

    Raises `InvalidArgument` if a value is malformed.
    """
    replicas = dict.fromkeys(measured.stages, 1)
    for text in given:
        role, _, count = text.partition("=")
        if role not in replicas or not count.isdigit() or int(count) < 1:
            raise InvalidArgument(
                f"--replicas {text}: must have the form {next(iter(replicas))}=2, with one of "
                f"{', '.join(replicas)}",
                field="replicas",
            )
        replicas[role] = int(count)
    return replicas


class PlanProgress:
    """Prints progress to stderr. Lines with a deeper indentation are printed every few seconds."""

    def __init__(self) -> None:
        self._told_at = time.monotonic()

    def __call__(self, line: str) -> None:
        """Print a line."""
        now = time.monotonic()
        if line.startswith("    ") and now < self._told_at + PROGRESS_S:
            return
        self._told_at = now
        print(line, file=sys.stderr, flush=True)


def _tell(lines: Sequence[str]) -> None:
    print("\n".join(lines))


def _save(path: Path | None, content: dict[str, Any]) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))
    print(f"\nsaved {path}")


_COMMANDS = {
    "plan": _plan,
    "simulate": _simulate,
    "compare": _compare,
    "measured": _measured,
}

if __name__ == "__main__":
    sys.exit(main())
