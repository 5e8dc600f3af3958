"""Threads for work that would block the event loop. There is a limited number of them for each type
of work.

asyncio's default executor is not used for anything that a client sends, because each type of work
would have to wait for all others there.
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
    """Up to `count` threads for one type of work. They are started when they are needed."""

    def __init__(self, name: str, count: int = 1) -> None:
        self._pool = ThreadPoolExecutor(count, name)

    async def run(self, work: Callable[[*Given], Made], *args: *Given) -> Made:
        """Do the work on a thread. Cancelling this call drops the work unless it has started."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    def close(self) -> None:
        """Stop starting new work."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class SizedThreads:
    """One thread for small tasks of a type and another one for large tasks, so that small tasks do
    not wait for large ones.
    """

    def __init__(self, name: str) -> None:
        self._small = Threads(f"{name}-small")
        self._large = Threads(f"{name}-large")

    async def run(self, size_bytes: int, work: Callable[[*Given], Made], *args: *Given) -> Made:
        """Do work on data of this size. See `Threads.run`."""
        lane = self._small if size_bytes <= SMALL_BYTES else self._large
        return await lane.run(work, *args)

    def close(self) -> None:
        """Stop starting new work."""
        self._small.close()
        self._large.close()
