"""The command line of capacity planning."""

from __future__ import annotations

import argparse
from pathlib import Path

from antiphon_tools.sizing.offered import KINDS

DESCRIPTION = """\
Replicas, GPUs and costs of a load, by a simulation of measured stages.
docs/sizing.md has an example."""


def command_line(prog: str) -> argparse.ArgumentParser:
    """Return the argument parser. Its result is processed in `__main__.py`."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="find the cheapest fleet that keeps a goal")
    _add_measured(plan)
    _add_load(plan)
    _add_goal(plan)
    _add_fleet(plan)
    simulate = commands.add_parser("simulate", help="say what a fleet does under a load")
    _add_measured(simulate)
    _add_load(simulate)
    _add_fleet(simulate)
    _add_replicas(simulate)
    compare = commands.add_parser(
        "compare", help="predict runs of the load test, and show them beside what was measured"
    )
    _add_measured(compare)
    compare.add_argument(
        "--run", type=Path, action="append", required=True, metavar="FILE",
        help="JSON of `python -m antiphon_tools.load gateway --rate R`; may be repeated",
    )  # fmt: skip
    compare.add_argument(
        "--tokens-per-s", type=float, default=4.0, metavar="N",
        help="tokens of the text for a second of audio (4)",
    )  # fmt: skip
    _add_replicas(compare)
    _add_json(compare)
    measured = commands.add_parser(
        "measured", help="make the file of what was measured from results of the load test"
    )
    measured.add_argument(
        "--run", type=Path, action="append", required=True, metavar="FILE",
        help="JSON of `python -m antiphon_tools.load ROLE --sessions N --pace flat` for several N, "
        "and of `gateway --sessions 1`; may be repeated",
    )  # fmt: skip
    measured.add_argument(
        "--model", type=Path, metavar="DIR",
        help="checkpoint whose pipeline was measured (as the results say)",
    )  # fmt: skip
    measured.add_argument(
        "--slots", type=int, default=16, metavar="N", help="sessions that a replica may have (16)"
    )
    measured.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="where it is written (YAML)"
    )
    return parser


def _add_measured(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--measured", type=Path, required=True, metavar="FILE",
        help="what was measured of the stages (YAML)",
    )  # fmt: skip


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the offered load")
    kinds = "; ".join(KINDS.values())
    group.add_argument("--rate", type=float, required=True, metavar="R", help="calls a second")
    group.add_argument(
        "--speech", default="lognormal:10:1", metavar="KIND:...",
        help=f"seconds of audio of a reply (lognormal:10:1), one of {kinds}",
    )  # fmt: skip
    group.add_argument(
        "--speech-max", type=float, default=600.0, metavar="S", help="no reply is longer (600)"
    )
    group.add_argument(
        "--prompt", default="lognormal:256:1", metavar="KIND:...",
        help="rows of a prompt (lognormal:256:1), likewise",
    )  # fmt: skip
    group.add_argument(
        "--tokens-per-s", type=float, default=4.0, metavar="N",
        help="tokens of the text for a second of audio (4)",
    )  # fmt: skip
    group.add_argument(
        "--burstiness", type=float, default=1.0, metavar="B",
        help="deviation of the gaps between calls over their mean: 1 is Poisson (1)",
    )  # fmt: skip
    group.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="simulated, after the warm-up (60)"
    )
    group.add_argument(
        "--warm-up", type=float, default=15.0, metavar="S", help="before that, not counted (15)"
    )
    group.add_argument("--seed", type=int, default=0, help="of calls and picks (0)")


def _add_goal(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the goal")
    group.add_argument(
        "--first-audio", type=float, required=True, metavar="S",
        help="the percentile of the first audio, at most",
    )  # fmt: skip
    group.add_argument("--percentile", type=float, default=95.0, metavar="P", help="which (95)")
    group.add_argument(
        "--answered", type=float, default=0.999, metavar="PART",
        help="so much is answered, and not refused (0.999)",
    )  # fmt: skip
    group.add_argument(
        "--gpu-hour", type=float, default=0.0, metavar="PRICE",
        help="of one GPU; costs are in the same currency (none are told without it)",
    )  # fmt: skip


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the simulation")
    group.add_argument(
        "--detail", choices=("auto", "steps", "calls"), default="auto",
        help="every engine step and message, or calls at measured rates (auto: by steps if that "
        "takes seconds)",
    )  # fmt: skip
    group.add_argument(
        "--gateways", type=int, default=0, metavar="N",
        help="how many (as many as keep their event loops 60 %% busy at most, and have room for "
        "the calls by max_calls)",
    )  # fmt: skip
    _add_json(group)


def _add_replicas(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--replicas", action="extend", nargs="+", default=[], metavar="ROLE=N",
        help="of the stages (1 each)",
    )  # fmt: skip


def _add_json(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the result is written")
