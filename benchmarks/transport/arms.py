"""What is compared: a way to move tensors, and how the two processes that do it are set."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from antiphon.runtime.process import SWITCH_INTERVAL_S, run

DEFAULT_SWITCH_INTERVAL_S = 5e-3
OMNI_ENV = "BENCHMARK_OMNI_WHEEL"


@dataclass(frozen=True, slots=True)
class Arm:
    """`as_stage`: with the loop, heap and switch interval of a stage process, else with the
    defaults of Python and glibc. `busy`: a thread of the consumer runs Python all the time.
    """

    name: str
    kind: str
    as_stage: bool = False
    busy: bool = False
    switch_interval_s: float = SWITCH_INTERVAL_S


RAW = Arm("raw", "raw")
SHARED_MEMORY = Arm("shared_memory", "shared_memory", as_stage=True)
GRPC = Arm("grpc", "grpc", as_stage=True)
WHOLE = Arm("grpc whole", "whole")
WHOLE_AS_STAGE = Arm("grpc whole, as stage", "whole", as_stage=True)
OMNI = Arm("omni", "omni")
WAYS = (RAW, SHARED_MEMORY, GRPC, WHOLE, WHOLE_AS_STAGE)

BUSY_DEFAULT = Arm(
    "busy, 5 ms", "shared_memory", as_stage=True, busy=True,
    switch_interval_s=DEFAULT_SWITCH_INTERVAL_S,
)  # fmt: skip
BUSY = Arm("busy, 100 µs", "shared_memory", as_stage=True, busy=True)
INTERPRETERS = (BUSY_DEFAULT, BUSY)

_ARMS = {arm.name: arm for arm in (*WAYS, OMNI, *INTERPRETERS)}


def arm_named(name: str) -> Arm:
    """The arm of that name. Raises `KeyError`."""
    return _ARMS[name]


def run_as(arm: Arm, main: Coroutine[Any, Any, None]) -> None:
    """Run one side's main coroutine in a process that is set as the arm says."""
    if arm.as_stage:
        run(main, arm.switch_interval_s)
    else:
        asyncio.run(main)


def omni_wheel() -> str:
    """Where the unpacked wheel of vllm-omni lies."""
    return os.environ[OMNI_ENV]


def command(module: str, *arguments: str) -> list[str]:
    """How to start a side."""
    return [sys.executable, "-m", f"benchmarks.transport.{module}", *arguments]
