"""The alternatives: a method to transfer tensors, and the settings of the two processes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from antiphon.runtime.process import SWITCH_INTERVAL_S, run

DEFAULT_SWITCH_INTERVAL_S = 5e-3
PAUSE_S = 8e-3
OMNI_ENV = "BENCHMARK_OMNI_WHEEL"


@dataclass(frozen=True, slots=True)
class Arm:
    """An alternative.

    If `as_stage` is true, the processes use the event loop, heap settings and switch interval of a
    stage process. Otherwise, they use the defaults of Python and glibc. If `busy` is true, a thread
    of the consumer constantly runs Python code. `pause_s` is a pause before each message, which
    lets the busy thread acquire the interpreter. If `ring` is true, chunks go through a ring in
    shared memory.
    """

    name: str
    kind: str
    as_stage: bool = False
    busy: bool = False
    switch_interval_s: float = SWITCH_INTERVAL_S
    pause_s: float = 0.0
    ring: bool = False


RAW = Arm("raw", "raw")
EVENTFD = Arm("eventfd, as stage", "eventfd", as_stage=True)
SHARED_MEMORY = Arm("shared_memory", "shared_memory", as_stage=True)
RING = Arm("ring", "shared_memory", as_stage=True, ring=True)
GRPC = Arm("grpc", "grpc", as_stage=True)
WHOLE = Arm("grpc whole", "whole")
WHOLE_AS_STAGE = Arm("grpc whole, as stage", "whole", as_stage=True)
GRPC_STREAM = Arm("grpc stream, as stage", "stream", as_stage=True)
OMNI = Arm("omni", "omni")
WAYS = (RAW, EVENTFD, RING, SHARED_MEMORY, GRPC, WHOLE, WHOLE_AS_STAGE)

IDLE = Arm("idle", "shared_memory", as_stage=True, pause_s=PAUSE_S)
BUSY = replace(IDLE, name="busy, 100 µs", busy=True)
BUSY_DEFAULT = replace(BUSY, name="busy, 5 ms", switch_interval_s=DEFAULT_SWITCH_INTERVAL_S)
INTERPRETERS = (IDLE, BUSY_DEFAULT, BUSY)

_ARMS = {arm.name: arm for arm in (*WAYS, GRPC_STREAM, OMNI, *INTERPRETERS)}


def arm_named(name: str) -> Arm:
    """Return the alternative with this name. Raises `KeyError` if it does not exist."""
    return _ARMS[name]


def run_as(arm: Arm, main: Coroutine[Any, Any, None]) -> None:
    """Run the main coroutine of a process with the settings of the alternative."""
    if arm.as_stage:
        run(main, arm.switch_interval_s)
    else:
        asyncio.run(main)


def omni_wheel() -> str:
    """Return the directory of the unpacked vllm-omni wheel."""
    return os.environ[OMNI_ENV]


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that starts a process."""
    # The resource tracker warns about every name that the consumer has removed.
    quiet = ("-W", "ignore::UserWarning:multiprocessing.resource_tracker")
    return [sys.executable, *quiet, "-m", f"benchmarks.transport.{module}", *arguments]
