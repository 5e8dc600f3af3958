"""The command line of capacity planning."""

from __future__ import annotations

import argparse
from pathlib import Path

from antiphon_tools.sizing.offered import KINDS

DESCRIPTION = (
    "Computes the replicas, GPUs and costs for a load by simulating measured stages.\nFor an "
    "example, see docs/sizing.md."
)


def command_line(prog: str) -> argparse.ArgumentParser:
    """Return the argument parser. Its result is processed in `__main__.py`."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="find the cheapest fleet that meets a goal")
    _add_measured(plan)
    _add_load(plan)
    _add_goal(plan)
    _add_fleet(plan)
    simulate = commands.add_parser(
        "simulate", help=("predict the performance of a fleet under a load")
    )
    _add_measured(simulate)
    _add_load(simulate)
    _add_fleet(simulate)
    _add_replicas(simulate)
    compare = commands.add_parser(
        "compare",
        help=("predict runs of the load test, and compare the predictions with the measurements"),
    )
    _add_measured(compare)
    compare.add_argument(
        "--run", type=Path, action="append", required=True, metavar="FILE",
        help="JSON of `python -m antiphon_tools.load gateway --rate R`; can be repeated",
    )  # fmt: skip
    compare.add_argument(
        "--tokens-per-s", type=float, default=4.0, metavar="N",
        help="text tokens per second of audio (4)",
    )  # fmt: skip
    _add_replicas(compare)
    _add_json(compare)
    measured = commands.add_parser(
        "measured", help="create a file of measurements from results of the load test"
    )
    measured.add_argument(
        "--run", type=Path, action="append", required=True, metavar="FILE",
        help=(
            "JSON of `python -m antiphon_tools.load ROLE --sessions N --pace flat` for several "
            "N, and of `gateway --sessions 1`; can be repeated"
            ),
    )  # fmt: skip
    measured.add_argument(
        "--model", type=Path, metavar="DIR",
        help="checkpoint whose pipeline was measured (default: from the results)",
    )  # fmt: skip
    measured.add_argument(
        "--slots",
        type=int,
        default=16,
        metavar="N",
        help=("maximum number of sessions per replica (16)"),
    )
    measured.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="output file (YAML)"
    )
    return parser


def _add_measured(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--measured", type=Path, required=True, metavar="FILE",
        help="measurements of the stages (YAML)",
    )  # fmt: skip


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the offered load")
    kinds = "; ".join(KINDS.values())
    group.add_argument("--rate", type=float, required=True, metavar="R", help="calls a second")
    group.add_argument(
        "--speech", default="lognormal:10:1", metavar="KIND:...",
        help=f"distribution of the seconds of audio per reply (lognormal:10:1), one of {kinds}",
    )  # fmt: skip
    group.add_argument(
        "--speech-max",
        type=float,
        default=600.0,
        metavar="S",
        help=("maximum seconds of audio per reply (600)"),
    )
    group.add_argument(
        "--prompt", default="lognormal:256:1", metavar="KIND:...",
        help="distribution of the rows per prompt (lognormal:256:1), in the same format",
    )  # fmt: skip
    group.add_argument(
        "--tokens-per-s", type=float, default=4.0, metavar="N",
        help="text tokens per second of audio (4)",
    )  # fmt: skip
    group.add_argument(
        "--burstiness", type=float, default=1.0, metavar="B",
        help="coefficient of variation of the time between calls (1, which means Poisson arrivals)",
    )  # fmt: skip
    group.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        metavar="S",
        help=("simulated time after the warm-up in seconds (60)"),
    )
    group.add_argument(
        "--warm-up",
        type=float,
        default=15.0,
        metavar="S",
        help=("simulated warm-up time in seconds, which is not counted (15)"),
    )
    group.add_argument(
        "--seed", type=int, default=0, help=("seed of the calls and replica selections (0)")
    )


def _add_goal(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the goal")
    group.add_argument(
        "--first-audio", type=float, required=True, metavar="S",
        help="the maximum of this percentile of the time to first audio",
    )  # fmt: skip
    group.add_argument("--percentile", type=float, default=95.0, metavar="P", help="which (95)")
    group.add_argument(
        "--answered", type=float, default=0.999, metavar="PART",
        help="minimum fraction of calls that are answered rather than rejected (0.999)",
    )  # fmt: skip
    group.add_argument(
        "--gpu-hour", type=float, default=0.0, metavar="PRICE",
        help=(
            "cost of one GPU per hour; all costs are in the same currency (default: costs are "
            "not reported)"
            ),
    )  # fmt: skip


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the simulation")
    group.add_argument(
        "--detail", choices=("auto", "steps", "calls"), default="auto",
        help=(
            "simulate every engine step and message, or calls at measured rates (auto: steps if "
            "this only takes seconds)"
            ),
    )  # fmt: skip
    group.add_argument(
        "--gateways", type=int, default=0, metavar="N",
        help=(
            "number of gateways (default: as many as are needed to keep their event loops at "
            "most 60 %% busy, and to have enough room for the calls with max_calls)"
            ),
    )  # fmt: skip
    _add_json(group)


def _add_replicas(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--replicas", action="extend", nargs="+", default=[], metavar="ROLE=N",
        help="replicas of the stages (1 each)",
    )  # fmt: skip


def _add_json(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="output file for the result")
