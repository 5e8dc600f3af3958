"""Reads the resource usage of processes during a run from /proc, which only exists on Linux."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PROC = Path("/proc")
# Indices of fields in /proc/PID/stat, counted from the field after the process name.
_USER_TICKS, _SYSTEM_TICKS, _THREADS = 11, 12, 17


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """The resource usage of a process at one point in time. `cpu_s` is the total CPU time so
    far.
    """

    at: float
    cpu_s: float
    memory_bytes: int
    descriptors: int
    threads: int


@dataclass(slots=True)
class ProcessWatch:
    """The measurements of each process by name."""

    pids: Mapping[str, int]
    seen: dict[str, list[ProcessUsage]] = field(default_factory=dict)

    def look(self, at: float) -> None:
        """Measure all processes. Processes that have ended are skipped."""
        for name, pid in self.pids.items():
            with contextlib.suppress(OSError):
                self.seen.setdefault(name, []).append(usage_of(pid, at))


def usage_of(pid: int, at: float) -> ProcessUsage:
    """Return the current resource usage of a process.

    Raises `OSError` if the process has ended or there is no /proc.
    """
    place = _PROC / str(pid)
    fields = (place / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    pages = int((place / "statm").read_text().split()[1])
    return ProcessUsage(
        at=at,
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        memory_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        descriptors=len(os.listdir(place / "fd")),
        threads=int(fields[_THREADS]),
    )


@contextlib.asynccontextmanager
async def watching(pids: Mapping[str, int], every_s: float) -> AsyncIterator[ProcessWatch]:
    """Measure processes at this interval while the context is active, and at its start and end."""
    watch, clock = ProcessWatch(pids), asyncio.get_running_loop().time

    async def look_on() -> None:
        while True:
            watch.look(clock())
            await asyncio.sleep(every_s)

    task = asyncio.create_task(look_on())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.wait([task])
        watch.look(clock())
