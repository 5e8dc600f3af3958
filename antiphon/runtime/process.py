"""Process and thread settings of a stage."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from antiphon.transport.heap import keep_freed_memory

Result = TypeVar("Result")

# How long a busy engine thread may hold the GIL before the event loop gets to run. With Python's
# default of 5 ms, every message would be delayed by that much.
SWITCH_INTERVAL_S = 100e-6


def run(main: Coroutine[Any, Any, Result], switch_interval_s: float = SWITCH_INTERVAL_S) -> Result:
    """Run the main coroutine of a process on uvloop, with the process settings used for stages."""
    keep_freed_memory()
    sys.setswitchinterval(switch_interval_s)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def stand_back(nice: int) -> None:
    """Increase the niceness of this thread, and of all threads and processes that it starts.

    `nice` is relative to the niceness of the process. This works only on Linux, because other
    systems don't have a separate niceness for each thread.
    """
    if nice and sys.platform == "linux":
        here = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, min(here + nice, 19))
