"""What a stage process sets for itself and its threads."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from antiphon.transport.heap import keep_freed_memory

Result = TypeVar("Result")

# A busy engine thread holds the interpreter for this long before the I/O loop runs;
# the default of 5 ms would be added to every message.
SWITCH_INTERVAL_S = 100e-6


def run(main: Coroutine[Any, Any, Result], switch_interval_s: float = SWITCH_INTERVAL_S) -> Result:
    """Run a process's main coroutine to its end, on the loop and with the settings of a stage."""
    keep_freed_memory()
    sys.setswitchinterval(switch_interval_s)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def stand_back(nice: int) -> None:
    """Lower this thread's priority, and that of the threads and processes that it will start.

    By so much below its process's; only Linux has threads with a priority of their own.
    """
    if nice and sys.platform == "linux":
        here = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, min(here + nice, 19))
