"""Faults that can be injected into a process, or into the connection to it."""

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
from antiphon_tools.chaos.shared_rings import damage_rings

FROZEN_S = 4.0
"""This is longer than the gateway waits for a heartbeat."""
SLOW_S = 4.0
STOPPED_S, RUNNING_S = 0.08, 0.02
"""With these values, a slowed-down process is stopped for four fifths of the time."""
WITHOUT_DESCRIPTORS_S = 2.0
WITHOUT_MEMORY_S = 2.0
PARTED_S = 4.0
"""This has the same value as `FROZEN_S`, but here the process is healthy and can't be reached."""
CUTS, CUT_EVERY_S = 4, 0.3
DAMAGED_S, DAMAGED_EVERY_S = 2.0, 0.05
RING_ROUNDS, RING_STOPPED_S, RING_RUNNING_S = 3, 0.3, 0.5
"""While a process is stopped, it doesn't read its rings, so their entries can be damaged."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A process and the connection through which the gateway and other stages reach it.

    `chance` is the source of randomness. `move_unseen` changes the address of the process without
    notifying the gateway.
    """

    pid: int
    wire: CutWire
    chance: random.Random
    move_unseen: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A type of fault.

    `strike` returns when the fault is over. If `kills` is true, the process is killed and has to be
    restarted.
    """

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
    """Prevent the process from opening files, connections and shared memory temporarily."""
    with _limited(victim, resource.RLIMIT_NOFILE, 3):
        await asyncio.sleep(WITHOUT_DESCRIPTORS_S)


async def _take_memory(victim: Victim) -> None:
    """Exhaust the shared memory of the process temporarily and reconnect its links."""
    with _limited(victim, resource.RLIMIT_FSIZE, 0):
        victim.wire.cut()
        await asyncio.sleep(WITHOUT_MEMORY_S)
    # Links from this process do not use shared memory until they are interrupted again.
    victim.wire.cut()


async def _part(victim: Victim) -> None:
    """Stop all traffic to and from the process temporarily, without closing any connection."""
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
    """From time to time, change a random byte of the traffic in either direction."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + DAMAGED_S
    while loop.time() < ends_at:
        victim.wire.damage(victim.chance, passing=victim.chance.randrange(4))
        await asyncio.sleep(DAMAGED_EVERY_S)


async def _damage_rings(victim: Victim) -> None:
    """Damage the entries that the process hasn't read from its rings."""
    for _ in range(RING_ROUNDS):
        os.kill(victim.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(RING_STOPPED_S)
            await asyncio.to_thread(damage_rings, victim.pid, victim.chance)
        finally:
            os.kill(victim.pid, signal.SIGCONT)
        await asyncio.sleep(RING_RUNNING_S)


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
RINGS = Fault("rings", _damage_rings)
WATCH_LOST = Fault("watch", _move_unseen)
GATEWAY_KILLED = Fault("gateway", _kill, kills=True)

OF_STAGES = {
    fault.name: fault
    for fault in (
        KILLED,
        FROZEN,
        SLOW,
        DESCRIPTORS,
        MEMORY,
        PARTED,
        CUT,
        DAMAGED,
        RINGS,
        WATCH_LOST,
    )
}
OF_THE_GATEWAY = {fault.name: fault for fault in (GATEWAY_KILLED,)}
NAMES = (*OF_STAGES, *OF_THE_GATEWAY)
