"""What processes use while a load runs, read from /proc (Linux; elsewhere nothing is)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PROC = Path("/proc")
# Fields of /proc/PID/stat, counted from behind the process's name.
_USER_TICKS, _SYSTEM_TICKS, _THREADS = 11, 12, 17


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """One look at a process. `cpu_s` is all that it has used so far."""

    at: float
    cpu_s: float
    memory_bytes: int
    descriptors: int
    threads: int


@dataclass(slots=True)
class ProcessWatch:
    """The looks at each process, by name."""

    pids: Mapping[str, int]
    seen: dict[str, list[ProcessUsage]] = field(default_factory=dict)

    def look(self, at: float) -> None:
        """Take one look at all of them; one that is gone is left out."""
        for name, pid in self.pids.items():
            with contextlib.suppress(OSError):
                self.seen.setdefault(name, []).append(usage_of(pid, at))


def usage_of(pid: int, at: float) -> ProcessUsage:
    """What a process uses now. Raises `OSError` if it is gone or there is no /proc."""
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
    """Look at processes at this interval while the block runs, and at its start and end."""
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
