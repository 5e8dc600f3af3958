"""Count the device operations of a step without a device: `python -m benchmarks.operations`.

A step of each model family's stages is run with the released number of layers on the meta device.
The following is counted: kernels that a device would launch, copies for which the host waits, and
distinct shapes and strides of attention in 64 steps. This is done with the setting `fused` off and,
for stages that support it, on. Language models use bfloat16, and audio decoders use float32.

Views are not counted. Attention, normalization, sorting and matrix products count as one kernel
each. If triton is installed, as in .venv-kernels, Inductor compiles each fused function for an
H100, and the number of generated kernels is counted. Otherwise, each fused function counts as one
kernel, which the output mentions.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from antiphon_services.lm import kernels as functions
from antiphon_services.lm.graphs import Eager
from antiphon_testkit.launches import launches_on_meta, meta_as_a_gpu
from benchmarks.operations.counted import DRAW, Call, CountedKernels, Decomposed
from benchmarks.operations.families import FAMILIES, UNFUSED
from benchmarks.operations.generated import generated_for_cuda

STEPS = 64
FIRST_POSITION = 100


@dataclass(frozen=True, slots=True)
class Counted:
    """The operations of consecutive steps.

    `launches` contains the number of kernels in each step, `waits` is the total number of copies
    for which the host waits, and `keys` is the number of distinct attention keys.
    """

    launches: list[int]
    waits: int
    keys: int

    def __str__(self) -> str:
        least, most = min(self.launches), max(self.launches)
        return str(most) if least == most else f"{least} to {most}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print the results."""
    options = _options(arguments)
    lowered = importlib.util.find_spec("triton") is not None
    print("each fused function:", "as generated for an H100" if lowered else "taken as one kernel")
    print("\n| step | sessions | eager | fused | waits | attention keys |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in (*FAMILIES, *UNFUSED):
        if all(word in name for word in options.only):
            for sessions in options.sessions:
                print(_row(name, sessions, lowered=lowered), flush=True)
    return 0


def _row(name: str, sessions: int, *, lowered: bool) -> str:
    eager = count(name, sessions, fused=False, lowered=lowered)
    if name in UNFUSED:
        return f"| {name} | {sessions} | {eager} | | {eager.waits} | {eager.keys} |"
    fused = count(name, sessions, fused=True, lowered=lowered)
    waits, keys = f"{eager.waits}, {fused.waits}", f"{eager.keys}, {fused.keys}"
    return f"| {name} | {sessions} | {eager} | {fused} | {waits} | {keys} |"


def count(name: str, sessions: int, *, fused: bool, lowered: bool, steps: int = STEPS) -> Counted:
    """Count the operations of consecutive steps, after one step that is not counted."""
    kernels = CountedKernels() if fused else None
    totals, waits, keys = [], 0, set()
    with torch.inference_mode(), meta_as_a_gpu() as device:
        step = (
            UNFUSED[name](device)
            if name in UNFUSED
            else FAMILIES[name](device, bucketing=Eager, kernels=kernels)
        )
        with launches_on_meta():
            step(sessions, FIRST_POSITION)
        for turn in range(1, steps + 1):
            with launches_on_meta() as launches, Decomposed():  # type: ignore[no-untyped-call]
                if kernels is not None:
                    kernels.launches = launches
                    kernels.calls.clear()
                step(sessions, FIRST_POSITION + turn)
            extra = _extra(kernels.calls) if kernels is not None and lowered else 0
            totals.append(launches.total + extra)
            waits += len(launches.waits)
            keys |= set(launches.attention)
    return Counted(totals, waits, len(keys))


def _extra(calls: Counter[Call]) -> int:
    """Return the number of kernels of fused functions that have not been counted yet."""
    return sum((_generated(call) - 1) * times for call, times in calls.items())


@cache
def _generated(call: Call) -> int:
    """Return the number of kernels of a call."""
    name, arguments = call
    if name == DRAW:
        return 1
    if name == "turn_heads_into":
        # The copy to the cache is the output of the kernel.
        return generated_for_cuda(functions.turned, arguments[1:]).launches
    return generated_for_cuda(getattr(functions, name), arguments).launches


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 64])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="steps with all these"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
