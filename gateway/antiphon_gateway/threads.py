"""Thread pools for work that would block the event loop. There is a separate, limited pool for each
kind of work.

Client data is never processed on asyncio's default executor, because a backlog of one kind of work
there would delay everything else.
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
    """A pool of up to `count` threads for one kind of work. Threads are started when they are first
    needed.
    """

    def __init__(self, name: str, count: int = 1) -> None:
        self._pool = ThreadPoolExecutor(count, name)

    async def run(self, work: Callable[[*Given], Made], *args: *Given) -> Made:
        """Run a function on a thread and return its result. If this is cancelled before the
        function has started, the function isn't run.
        """
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    def close(self) -> None:
        """Stop accepting work."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class SizedThreads:
    """Two threads for one kind of work. One is for small tasks and the other for large tasks, so
    that small tasks don't have to wait for large ones.
    """

    def __init__(self, name: str) -> None:
        self._small = Threads(f"{name}-small")
        self._large = Threads(f"{name}-large")

    async def run(self, size_bytes: int, work: Callable[[*Given], Made], *args: *Given) -> Made:
        """Run a function that processes `size_bytes` bytes of data. See `Threads.run` for
        details.
        """
        lane = self._small if size_bytes <= SMALL_BYTES else self._large
        return await lane.run(work, *args)

    def close(self) -> None:
        """Stop accepting work."""
        self._small.close()
        self._large.close()
