"""Measures the CPU time of processes in seconds (Linux)."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

_PROCESS_CLOCK = 2
_PROC = Path("/proc")


def process_cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process, including threads that have ended.

    The precision is that of the kernel. Raises `OSError` if the process has ended. The clock ID is
    computed as in the macro `MAKE_PROCESS_CPUCLOCK` in the kernel's posix-timers_types.h.
    """
    return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)


def cpu_s_of(pids: Iterable[int]) -> float:
    """Return the total CPU time of these processes. Raises `OSError` if one of them has ended."""
    return sum(map(process_cpu_s, pids))


def own_and_cpu_s_of(pids: Iterable[int]) -> float:
    """Return the total CPU time of these processes and this one, which contains the client."""
    return time.process_time() + cpu_s_of(pids)


def tree_cpu_s() -> float:
    """Return the CPU time of this process and of all its descendants, including those that have
    ended.

    The time of a grandchild that has ended is only included after its parent has ended and has been
    waited for.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = time.process_time() + ended.ru_utime + ended.ru_stime
    for pid in descendants(os.getpid()):
        try:
            used += process_cpu_s(pid)
        except OSError:
            # The process has ended since it was listed. Its time is now included in that of its
            # parent.
            continue
    return used


def descendants(pid: int) -> list[int]:
    """Return all running descendants of a process."""
    found: list[int] = []
    left = [pid]
    while left:
        for task in _tasks(left.pop()):
            try:
                children = [int(each) for each in (task / "children").read_text().split()]
            except OSError:
                continue
            found += children
            left += children
    return found


def _tasks(pid: int) -> list[Path]:
    try:
        return list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return []
