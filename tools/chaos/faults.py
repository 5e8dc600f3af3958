"""What can happen to a process: how it begins, and how it ends."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

FROZEN_S = 4.0
"""Longer than the gateway waits for a sign of life."""
SLOW_S = 4.0
STOPPED_S, RUNNING_S = 0.08, 0.02
"""Of a slow process: four fifths of its time it stands still."""
WITHOUT_DESCRIPTORS_S = 2.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to fail. `strike` returns when it is over but for what it `kills`, which is started
    again."""

    name: str
    strike: Callable[[int], Awaitable[None]]
    kills: bool = False


async def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


async def _freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(FROZEN_S)
    finally:
        os.kill(pid, signal.SIGCONT)


async def _slow_down(pid: int) -> None:
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + SLOW_S
    while loop.time() < ends_at:
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(STOPPED_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(RUNNING_S)


async def _take_descriptors(pid: int) -> None:
    """It can open nothing more for a while: no file, no connection, no shared memory."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        await asyncio.sleep(WITHOUT_DESCRIPTORS_S)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


KILLED = Fault("kill", _kill, kills=True)
FROZEN = Fault("freeze", _freeze)
SLOW = Fault("slow", _slow_down)
DESCRIPTORS = Fault("descriptors", _take_descriptors)
GATEWAY_KILLED = Fault("gateway", _kill, kills=True)

OF_STAGES = {fault.name: fault for fault in (KILLED, FROZEN, SLOW, DESCRIPTORS)}
OF_THE_GATEWAY = {fault.name: fault for fault in (GATEWAY_KILLED,)}
NAMES = (*OF_STAGES, *OF_THE_GATEWAY)
