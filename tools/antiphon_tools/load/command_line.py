"""The command line of a load test."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from antiphon.values.segment import ChunkPolicy, Delivery
from antiphon_tools.hub.settings import add_hub_options
from antiphon_tools.launcher.plan import GATEWAY
from antiphon_tools.load.measured import METRICS
from antiphon_tools.load.upstream import RATE_HZ

DEFAULT_RATE = 1.0

Number = TypeVar("Number", int, float)


def _number(
    kind: Callable[[str], Number], fits: Callable[[Number], bool], wanted: str
) -> Callable[[str], Number]:
    """Return a function that parses an argument. Invalid values are rejected with a description."""

    def read(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not fits(value):
            raise argparse.ArgumentTypeError(f"{text}: must be {wanted}")
        return value

    return read


_above_zero = _number(float, lambda value: 0 < value < math.inf, "a number above 0")
_part = _number(float, lambda value: 0 < value <= 1, "above 0 and at most 1")
_positive = _number(int, lambda value: value >= 1, "a whole number from 1 on")
_count = _number(int, lambda value: value >= 0, "a whole number from 0 on")


def _chunk_frames(text: str) -> ChunkPolicy:
    """Parse a chunk policy such as `1,2,4,8,12`.

    The values are the size of the first chunk, the sizes of the ramp, and the size of all later
    chunks.
    """
    sizes = [_positive(each) for each in text.split(",")]
    return ChunkPolicy(first=sizes[0], ramp=tuple(sizes[1:-1]), steady=sizes[-1])


def command_line(prog: str) -> argparse.ArgumentParser:
    """Return the argument parser. Its result is processed in `options.py`."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Loads one service with its real protocol and reports what its users see. "
        "Without --target it starts what it needs, on loopback, and stops it afterwards.",
    )
    parser.add_argument("service", nargs="?", help=f"service to load: {GATEWAY}, or a stage's role")
    _add_load(parser.add_argument_group("how much"))
    _add_place(parser.add_argument_group("where"))
    _add_content(parser.add_argument_group("what requests are"))
    _add_upstream(parser.add_argument_group("what stages are fed"))
    _add_result(parser.add_argument_group("result"))
    add_hub_options(parser)
    return parser


def _add_load(group: argparse._ArgumentGroup) -> None:
    loop = group.add_mutually_exclusive_group()
    loop.add_argument(
        "--rate", type=_above_zero, metavar="R",
        help=f"open loop: Poisson arrivals, requests/s ({DEFAULT_RATE:g})",
    )  # fmt: skip
    loop.add_argument(
        "--sessions",
        type=_positive,
        metavar="N",
        help="closed loop: N concurrent requests, each followed by the next",
    )
    group.add_argument(
        "--seconds",
        type=_above_zero,
        default=30.0,
        metavar="S",
        help="duration after the warm-up (30)",
    )
    group.add_argument(
        "--warm-up",
        type=float,
        default=3.0,
        metavar="S",
        help="load before the measurement, not counted (3)",
    )
    group.add_argument(
        "--drain", type=float, default=60.0, metavar="S",
        help="longest wait for open requests at the end; the rest fails (60)",
    )  # fmt: skip
    group.add_argument(
        "--max-open", type=_positive, default=256, metavar="N",
        help="maximum of open requests; further ones are not sent and fail (256)",
    )  # fmt: skip
    group.add_argument(
        "--timeout", type=_above_zero, default=120.0, metavar="S", help="timeout of a request (120)"
    )
    group.add_argument("--seed", type=_count, default=0, help="seed of the arrivals (0)")


def _add_place(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--target", default="", metavar="ADDRESS",
        help="a running service: host:port (gRPC), or http[s]://host:port (the gateway)",
    )  # fmt: skip
    group.add_argument(
        "--tls", nargs="?", const="", metavar="FILE",
        help="the service has TLS; FILE has the authorities to trust (the system's)",
    )  # fmt: skip
    group.add_argument(
        "--certificate", type=Path, metavar="FILE",
        help="with --tls: client certificate; for a stage, its name is one of the deployment's "
        "mutual_tls.operators",
    )  # fmt: skip
    group.add_argument("--key", type=Path, metavar="FILE", help="key of --certificate")
    group.add_argument(
        "--model",
        metavar="MODEL",
        help="checkpoint directory, or ORG/NAME of the hub (the small one in the repository)",
    )
    group.add_argument("--config", type=Path, metavar="FILE", help="deployment file (YAML)")
    group.add_argument(
        "--stage", action="extend", nargs="+", default=[], metavar="ROLE.KEY=VALUE",
        help="a stage's setting, for example ROLE.device=cuda:1",
    )  # fmt: skip
    group.add_argument(
        "--endpoint", choices=("http", "grpc"), default="http",
        help="of the gateway: streamed chat completions, or the SDK (http)",
    )  # fmt: skip


def _add_content(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--prompt-length", type=_count, default=12, metavar="N",
        help="random words to repeat; tokens if a stage is fed a prompt (12)",
    )  # fmt: skip
    group.add_argument("--prompts", type=Path, metavar="FILE", help="prompts, one a line, in turn")
    group.add_argument(
        "--reply-tokens", type=_count, default=64, metavar="N",
        help="maximum of text tokens, and tokens fed to a stage (64); 0: no limit",
    )  # fmt: skip
    group.add_argument(
        "--frames",
        type=_count,
        default=100,
        metavar="N",
        help="maximum of codec frames, and frames fed to a stage (100); 0: no limit",
    )
    group.add_argument("--voice", default="", help="voice (the model's first)")
    group.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE",
        help="an option of the model; a VALUE that begins with @ names a WAV file; may be repeated",
    )  # fmt: skip
    group.add_argument("--text-only", action="store_true", help="request no audio from the gateway")
    group.add_argument(
        "--delivery",
        choices=[each.value for each in Delivery],
        help="of every edge (the pipeline's)",
    )
    group.add_argument(
        "--chunk-frames", type=_chunk_frames, metavar="N,N,...",
        help="codec frames in the first, the next, ... and every later chunk, in and out (as the "
        "pipeline groups them; a stage that is fed at real time gets them one by one)",
    )  # fmt: skip


def _add_upstream(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--pace", choices=("real", "flat"), default="real",
        help="feed at real time, or without pauses (real)",
    )  # fmt: skip
    group.add_argument(
        "--feed-rate", type=_above_zero, default=0.0, metavar="R",
        help="codec frames, or tokens, that a stage gets per second at real time (as many frames "
        f"as a second of audio has; {RATE_HZ:g} tokens)",
    )  # fmt: skip
    group.add_argument(
        "--record", type=Path, metavar="FILE",
        help="no load: answer a few requests and record the chunks between the stages",
    )  # fmt: skip
    group.add_argument("--replay", type=Path, metavar="FILE", help="feed a stage a recording")


def _add_result(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--slo", action="append", default=[], metavar="METRIC=LIMIT",
        help=f"objective of a good request, of {', '.join(METRICS)}; may be repeated "
        "(ttft=1 for text, ttfa=1 and underrun=0.1 for audio, ttfi=30 for images)",
    )  # fmt: skip
    group.add_argument("--json", type=Path, metavar="FILE", help="file of the result")
    group.add_argument("--html", type=Path, metavar="FILE", help="file of the page")
    group.add_argument(
        "--find-capacity", action="store_true",
        help="find the largest load with enough goodput; --rate or --sessions is the first tried",
    )  # fmt: skip
    group.add_argument(
        "--goodput", type=_part, default=0.95, metavar="PART", help="what is enough (0.95)"
    )
    group.add_argument("--max-trials", type=_positive, default=10, metavar="N", help="at most (10)")
    group.add_argument(
        "--resolution", type=_above_zero, default=0.1, metavar="PART",
        help="how close the limits of the capacity come (0.1)",
    )  # fmt: skip
