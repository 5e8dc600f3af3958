"""What can happen to a process, or to the wire that leads to it: how it begins and ends."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from antiphon_testkit.cut_wire import CutWire

FROZEN_S = 4.0
"""Longer than the gateway waits for a sign of life."""
SLOW_S = 4.0
STOPPED_S, RUNNING_S = 0.08, 0.02
"""Of a slow process: four fifths of its time it stands still."""
WITHOUT_DESCRIPTORS_S = 2.0
WITHOUT_MEMORY_S = 2.0
PARTED_S = 4.0
"""As `FROZEN_S`: the process is well, and nobody reaches it."""
CUTS, CUT_EVERY_S = 4, 0.3
DAMAGED_S, DAMAGED_EVERY_S = 2.0, 0.05


@dataclass(frozen=True, slots=True)
class Victim:
    """A process, and the wire through which the gateway and other stages reach it. What is drawn
    comes from `chance`. `move_unseen` gives it another address, which the gateway misses."""

    pid: int
    wire: CutWire
    chance: random.Random
    move_unseen: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to fail. `strike` returns when it is over but for what it `kills`, which is started
    again."""

    name: str
    strike: Callable[[Victim], Awaitable[None]]
    kills: bool = False


async def _kill(victim: Victim) -> None:
    os.kill(victim.pid, signal.SIGKILL)


async def _freeze(victim: Victim) -> None:
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(FROZEN_S)
    finally:
        os.kill(victim.pid, signal.SIGCONT)


async def _slow_down(victim: Victim) -> None:
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + SLOW_S
    while loop.time() < ends_at:
        os.kill(victim.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(STOPPED_S)
        finally:
            os.kill(victim.pid, signal.SIGCONT)
        await asyncio.sleep(RUNNING_S)


@contextmanager
def _limited(victim: Victim, limit: int, most: int) -> Iterator[None]:
    before = resource.prlimit(victim.pid, limit)
    resource.prlimit(victim.pid, limit, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(victim.pid, limit, before)


async def _take_descriptors(victim: Victim) -> None:
    """It can open nothing more for a while: no file, no connection, no shared memory."""
    with _limited(victim, resource.RLIMIT_NOFILE, 3):
        await asyncio.sleep(WITHOUT_DESCRIPTORS_S)


async def _take_memory(victim: Victim) -> None:
    """Exhaust the process's shared memory for a while, and reconnect its links."""
    with _limited(victim, resource.RLIMIT_FSIZE, 0):
        victim.wire.cut()
        await asyncio.sleep(WITHOUT_MEMORY_S)
    # Links from it do without, until they break for the next time.
    victim.wire.cut()


async def _part(victim: Victim) -> None:
    """Nothing comes through to it for a while, nor back; no connection breaks by that."""
    victim.wire.flowing.clear()
    try:
        await asyncio.sleep(PARTED_S)
    finally:
        victim.wire.flowing.set()


async def _cut(victim: Victim) -> None:
    for _ in range(CUTS):
        victim.wire.cut()
        await asyncio.sleep(CUT_EVERY_S)


async def _damage(victim: Victim) -> None:
    """Now and then a byte is changed of what goes to it, or comes back."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + DAMAGED_S
    while loop.time() < ends_at:
        victim.wire.damage(victim.chance, passing=victim.chance.randrange(4))
        await asyncio.sleep(DAMAGED_EVERY_S)


async def _move_unseen(victim: Victim) -> None:
    await victim.move_unseen()


KILLED = Fault("kill", _kill, kills=True)
FROZEN = Fault("freeze", _freeze)
SLOW = Fault("slow", _slow_down)
DESCRIPTORS = Fault("descriptors", _take_descriptors)
MEMORY = Fault("memory", _take_memory)
PARTED = Fault("partition", _part)
CUT = Fault("cut", _cut)
DAMAGED = Fault("damage", _damage)
WATCH_LOST = Fault("watch", _move_unseen)
GATEWAY_KILLED = Fault("gateway", _kill, kills=True)

OF_STAGES = {
    fault.name: fault
    for fault in (KILLED, FROZEN, SLOW, DESCRIPTORS, MEMORY, PARTED, CUT, DAMAGED, WATCH_LOST)
}
OF_THE_GATEWAY = {fault.name: fault for fault in (GATEWAY_KILLED,)}
NAMES = (*OF_STAGES, *OF_THE_GATEWAY)
