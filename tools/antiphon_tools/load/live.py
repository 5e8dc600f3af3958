"""Shows the progress of a run, either as a single updated line or as a new line from time to
time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from typing import TextIO

from antiphon_tools.load import figures
from antiphon_tools.load.objectives import Objective, goodput
from antiphon_tools.load.run import LoadRun
from antiphon_tools.load.statistics import distribution
from antiphon_tools.load.tables import DASH

TERMINAL_EVERY_S = 0.5
PLAIN_EVERY_S = 10.0
LATEST = 200
"""The number of recent requests that are included in the figures."""


def progress_line(run: LoadRun, now: float, objectives: Sequence[Objective]) -> str:
    """Return a line that describes the current state of a run."""
    latest = list(islice(reversed(run.requests), LATEST))
    since_s = now - run.started_at
    ends_s = run.load.ends_s
    where = "drain" if since_s > ends_s else "warm-up" if now < run.measured_from else "load"
    parts = [
        f"{where:<7} {min(since_s, ends_s):5.1f}/{ends_s:g} s",
        f"sent {run.sent}",
        f"open {run.open}",
        f"failed {sum(bool(each.error) for each in run.requests)}",
    ]
    for name in ("ttft", "ttfa", "ttfi"):
        seen = distribution(v for each in latest if (v := each.metric(name)) is not None)
        if seen is not None:
            p99 = DASH if seen.p99 is None else figures.seconds(seen.p99)
            parts.append(f"{name} p50 {figures.seconds(seen.p50)} p99 {p99} n {seen.count}")
    if latest:
        parts.append(f"good {figures.percent(goodput(latest, objectives))}")
    return "  ".join(parts)


@contextlib.asynccontextmanager
async def shown(
    run: LoadRun, objectives: Sequence[Objective], stream: TextIO
) -> AsyncIterator[None]:
    """Show the progress of the run while the context is active."""
    clock, on_terminal = asyncio.get_running_loop().time, stream.isatty()
    end = "\x1b[K\r" if on_terminal else "\n"

    async def show_on() -> None:
        while True:
            await asyncio.sleep(TERMINAL_EVERY_S if on_terminal else PLAIN_EVERY_S)
            print("  " + progress_line(run, clock(), objectives), end=end, file=stream, flush=True)

    task = asyncio.create_task(show_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if on_terminal:
            print(end="\x1b[K", file=stream, flush=True)
