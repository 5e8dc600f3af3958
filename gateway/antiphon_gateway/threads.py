"""Threads for work that would hold the event loop up, a bounded number for each kind of it.

Nothing uses asyncio's default executor for what a client sends: one kind of work there would wait
for every other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

Given = TypeVarTuple("Given")
Made = TypeVar("Made")

SMALL_BYTES = 1 << 20


class Threads:
    """At most `count` threads of one kind of work, which start when they are needed."""

    def __init__(self, name: str, count: int = 1) -> None:
        self._pool = ThreadPoolExecutor(count, name)

    async def run(self, work: Callable[[*Given], Made], *args: *Given) -> Made:
        """Do the work on a thread. Cancelling drops it unless it has begun."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class SizedThreads:
    """A thread for small tasks of one kind and another for large ones, so that small tasks do not
    wait for large ones."""

    def __init__(self, name: str) -> None:
        self._small = Threads(f"{name}-small")
        self._large = Threads(f"{name}-large")

    async def run(self, size_bytes: int, work: Callable[[*Given], Made], *args: *Given) -> Made:
        """Do work on so many bytes; see `Threads.run`."""
        lane = self._small if size_bytes <= SMALL_BYTES else self._large
        return await lane.run(work, *args)

    def close(self) -> None:
        """Begin nothing more."""
        self._small.close()
        self._large.close()
