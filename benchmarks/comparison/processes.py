"""CPU time of processes, in seconds (Linux)."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

_PROCESS_CLOCK = 2
_PROC = Path("/proc")


def process_cpu_s(pid: int) -> float:
    """CPU time of all threads of a process, ended ones included, with the kernel's precision.

    Raises `OSError` if the process is gone. Source: `MAKE_PROCESS_CPUCLOCK` in the kernel's
    posix-timers_types.h.
    """
    return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)


def cpu_s_of(pids: Iterable[int]) -> float:
    """CPU time of these processes together. Raises `OSError` if one is gone."""
    return sum(map(process_cpu_s, pids))


def own_and_cpu_s_of(pids: Iterable[int]) -> float:
    """CPU time of these processes and of this one, which has the client in it."""
    return time.process_time() + cpu_s_of(pids)


def tree_cpu_s() -> float:
    """CPU time of this process and of all its descendants, running and ended.

    The time of an ended grandchild counts once its parent has ended and was waited for.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = time.process_time() + ended.ru_utime + ended.ru_stime
    for pid in descendants(os.getpid()):
        try:
            used += process_cpu_s(pid)
        except OSError:
            # It has ended since it was listed; from now on its parent's figures have its time.
            continue
    return used


def descendants(pid: int) -> list[int]:
    """The running children of a process, their children, and so on."""
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
