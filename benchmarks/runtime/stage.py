"""A stage process: `python -m benchmarks.runtime.stage ROLE SLOTS POSITIONS [--count-calls]`.

It prints its address. When stdin is closed, it prints the number of Python calls in `antiphon`
since the first session, or 0 if calls are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace

from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.process import run
from antiphon_testkit.stage_harness import LIMITS, LINKS, running_stage
from benchmarks.runtime.calls import CallCount
from benchmarks.runtime.engines import load


async def serve(role: str, slots: int, positions: int) -> None:
    """Serve until stdin is closed."""
    limits = replace(LIMITS, slots=slots, hold_bytes=64 << 20, stall_timeout_s=300.0)
    links = replace(LINKS, slab_bytes=256 << 20, resume_window_s=5.0)
    async with running_stage(
        load(role, positions),
        role,
        pipeline=PIPELINE,
        limits=limits,
        links=links,
        outbox_bytes=256 << 20,
    ) as running:
        print(running.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> int:
    """Run a stage and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role")
    parser.add_argument("slots", type=int)
    parser.add_argument("positions", type=int)
    parser.add_argument("--count-calls", action="store_true")
    arguments = parser.parse_args()
    calls = CallCount()
    if arguments.count_calls:
        calls.start()
    run(serve(arguments.role, arguments.slots, arguments.positions))
    print(calls.stop(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
