"""The command line of a load test."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from antiphon.values.segment import ChunkPolicy, Delivery
from antiphon_tools.hub.settings import add_hub_options
from antiphon_tools.launcher.plan import GATEWAY
from antiphon_tools.load.measured import METRICS
from antiphon_tools.load.upstream import RATE_HZ

DEFAULT_RATE = 1.0
API_KEY_VARIABLE = "ANTIPHON_API_KEY"

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
_positive = _number(int, lambda value: value >= 1, "an integer of at least 1")
_count = _number(int, lambda value: value >= 0, "an integer of at least 0")


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
        description=(
            "Runs a load test of one service with its real protocol, and reports what its users "
            "would experience. Without --target, it starts the required processes on the "
            "loopback interface, and stops them afterwards."
        ),
    )
    parser.add_argument(
        "service", nargs="?", help=(f"service to test: {GATEWAY}, or the role of a stage")
    )
    _add_load(parser.add_argument_group("how much"))
    _add_place(parser.add_argument_group("where"))
    _add_content(parser.add_argument_group("content of the requests"))
    _add_upstream(parser.add_argument_group("input of the stages"))
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
        help="load before the measurement, which is not counted (3)",
    )
    group.add_argument(
        "--drain", type=float, default=60.0, metavar="S",
        help=(
            "maximum time to wait for open requests at the end; requests that take longer fail "
            "(60)"
            ),
    )  # fmt: skip
    group.add_argument(
        "--max-open", type=_positive, default=256, metavar="N",
        help=(
            "maximum number of open requests; further requests are not sent and count as failed "
            "(256)"
            ),
    )  # fmt: skip
    group.add_argument(
        "--timeout", type=_above_zero, default=120.0, metavar="S", help="timeout of a request (120)"
    )
    group.add_argument("--seed", type=_count, default=0, help="seed of the arrival times (0)")


def _add_place(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--target", default="", metavar="ADDRESS",
        help="address of a running service: host:port (gRPC), or http[s]://host:port (the gateway)",
    )  # fmt: skip
    group.add_argument(
        "--tls", nargs="?", const="", metavar="FILE",
        help="connect with TLS; FILE contains the trusted authorities (default: the system's)",
    )  # fmt: skip
    group.add_argument(
        "--certificate", type=Path, metavar="FILE",
        help=(
            "client certificate for --tls; for a stage, its name must be one of "
            "mutual_tls.operators in the deployment"
            ),
    )  # fmt: skip
    group.add_argument("--key", type=Path, metavar="FILE", help="private key of --certificate")
    group.add_argument(
        "--api-key", default=os.environ.get(API_KEY_VARIABLE, ""), metavar="KEY",
        help=f"API key of the gateway (default: the environment variable {API_KEY_VARIABLE})",
    )  # fmt: skip
    group.add_argument(
        "--model",
        metavar="MODEL",
        help="checkpoint directory, or ORG/NAME on the hub (default: the demonstration model)",
    )
    group.add_argument("--config", type=Path, metavar="FILE", help="deployment file (YAML)")
    group.add_argument(
        "--stage", action="extend", nargs="+", default=[], metavar="ROLE.KEY=VALUE",
        help="setting of a stage, such as ROLE.device=cuda:1",
    )  # fmt: skip
    group.add_argument(
        "--endpoint", choices=("http", "grpc"), default="http",
        help="API of the gateway: streamed chat completions, or the SDK (http)",
    )  # fmt: skip


def _add_content(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--prompt-length", type=_count, default=12, metavar="N",
        help=(
            "number of random words to repeat, or of tokens for a stage whose input is a prompt "
            "(12)"
            ),
    )  # fmt: skip
    group.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help=("file with one prompt per line, which are used in turn"),
    )
    group.add_argument(
        "--reply-tokens", type=_count, default=64, metavar="N",
        help=(
            "maximum number of text tokens, or number of input tokens of a stage (64); 0: no "
            "limit"
            ),
    )  # fmt: skip
    group.add_argument(
        "--frames",
        type=_count,
        default=100,
        metavar="N",
        help=(
            "maximum number of codec frames, or number of input frames of a stage (100); 0: no "
            "limit"
        ),
    )
    group.add_argument("--voice", default="", help="voice (default: the first one of the model)")
    group.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE",
        help=(
            "an option of the model; a VALUE that starts with @ is the name of a WAV file; can "
            "be repeated"
            ),
    )  # fmt: skip
    group.add_argument(
        "--text-only", action="store_true", help=("don't request audio from the gateway")
    )
    group.add_argument(
        "--delivery",
        choices=[each.value for each in Delivery],
        help="delivery of every edge (default: the pipeline's)",
    )
    group.add_argument(
        "--chunk-frames", type=_chunk_frames, metavar="N,N,...",
        help=(
            "number of codec frames in the first, the next, ... and every later chunk, of "
            "inputs and outputs (default: the pipeline's; stages that receive input in real "
            "time get one frame per chunk)"
            ),
    )  # fmt: skip


def _add_upstream(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--pace", choices=("real", "flat"), default="real",
        help="send the input in real time, or without pauses (real)",
    )  # fmt: skip
    group.add_argument(
        "--feed-rate", type=_above_zero, default=0.0, metavar="R",
        help=(
            "codec frames or tokens per second in real time (default: the frame rate of the "
            f"audio, or {RATE_HZ:g} tokens)"
            ),
    )  # fmt: skip
    group.add_argument(
        "--record", type=Path, metavar="FILE",
        help=(
            "instead of a load test, answer a few requests and record the chunks between the "
            "stages"
            ),
    )  # fmt: skip
    group.add_argument(
        "--replay", type=Path, metavar="FILE", help=("send the chunks of a recording to a stage")
    )


def _add_result(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--slo", action="append", default=[], metavar="METRIC=LIMIT",
        help=(
            f"objective of a good request: one of {', '.join(METRICS)}; can be repeated (ttft=1 "
            "for text, ttfa=1 and underrun=0.1 for audio, ttfi=30 for images)"
            ),
    )  # fmt: skip
    group.add_argument("--json", type=Path, metavar="FILE", help="file for the result")
    group.add_argument("--html", type=Path, metavar="FILE", help="file for the HTML page")
    group.add_argument(
        "--find-capacity", action="store_true",
        help=(
            "find the largest load with sufficient goodput; --rate or --sessions is the first "
            "load to try"
            ),
    )  # fmt: skip
    group.add_argument(
        "--goodput", type=_part, default=0.95, metavar="PART", help="sufficient goodput (0.95)"
    )
    group.add_argument("--max-trials", type=_positive, default=10, metavar="N", help="at most (10)")
    group.add_argument(
        "--resolution", type=_above_zero, default=0.1, metavar="PART",
        help="relative accuracy of the capacity (0.1)",
    )  # fmt: skip
