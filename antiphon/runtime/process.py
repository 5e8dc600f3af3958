"""Settings of a stage process and its threads."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from antiphon.transport.heap import keep_freed_memory

Result = TypeVar("Result")

# How long a busy engine thread may hold the GIL before the event loop runs. The default of 5 ms
# would be added to every message.
SWITCH_INTERVAL_S = 100e-6


def run(main: Coroutine[Any, Any, Result], switch_interval_s: float = SWITCH_INTERVAL_S) -> Result:
    """Run a process's main coroutine on uvloop, with a stage's process settings."""
    keep_freed_memory()
    sys.setswitchinterval(switch_interval_s)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def stand_back(nice: int) -> None:
    """Raise the niceness of this thread and of the threads and processes that it starts.

    `nice` is relative to the process. No effect outside Linux, where niceness is per process.
    """
    if nice and sys.platform == "linux":
        here = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, min(here + nice, 19))
