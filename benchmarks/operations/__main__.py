"""What a step asks its device for, without a device: `python -m benchmarks.operations`.

Counts a step of each family's talker and torch thinker at the released depths, in bfloat16, on the
meta device: kernels that a device would launch, copies that the host waits for, and distinct shapes
and strides of attention in 64 steps; with the setting `fused` off and on. Views cost nothing;
attention, norms, sorts and products count one each. Where triton is installed, as in .venv-kernels,
each fused function is lowered by Inductor for an H100 and counts as many kernels as were generated;
elsewhere it counts one, and the output says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from functools import cache

import torch

from antiphon.testing.launches import launches_on_meta, meta_as_a_gpu
from benchmarks.operations.counted import DRAW, Call, CountedKernels
from benchmarks.operations.families import FAMILIES
from benchmarks.operations.generated import generated_for_cuda
from services.lm import kernels as functions
from services.lm.graphs import Eager

STEPS = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and print."""
    options = _options(arguments)
    lowered = importlib.util.find_spec("triton") is not None
    print("each fused function:", "as generated for an H100" if lowered else "taken as one kernel")
    print("\n| step | sessions | eager | fused | waits, eager, fused | attention keys |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in FAMILIES:
        if all(word in name for word in options.only):
            for sessions in options.sessions:
                print(_row(name, sessions, lowered=lowered), flush=True)
    return 0


def _row(name: str, sessions: int, *, lowered: bool) -> str:
    eager, eager_waits, _ = count(name, sessions, fused=False, lowered=lowered)
    fused, fused_waits, keys = count(name, sessions, fused=True, lowered=lowered)
    return f"| {name} | {sessions} | {eager} | {fused} | {eager_waits}, {fused_waits} | {keys} |"


def count(name: str, sessions: int, *, fused: bool, lowered: bool) -> tuple[int, int, int]:
    """Launches of a step, copies that wait, and distinct keys of attention."""
    kernels = CountedKernels() if fused else None
    with torch.inference_mode(), meta_as_a_gpu() as device:
        step = FAMILIES[name](device, Eager, kernels)
        with launches_on_meta():
            step(sessions)
        with launches_on_meta() as launches:
            if kernels is not None:
                kernels.launches = launches
            step(sessions)
    total = launches.total
    if kernels is not None and lowered:
        extra = {call: _generated(call) - 1 for call in kernels.calls}
        total += sum(extra[call] * times for call, times in kernels.calls.items())
    return total, len(launches.waits), len(set(launches.attention))


@cache
def _generated(call: Call) -> int:
    """Kernels of one call."""
    name, arguments = call
    if name == DRAW:
        return 1
    if name == "turn_heads_into":
        # The copy into the cache is where the kernel writes.
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
