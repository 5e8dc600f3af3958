"""How loaded a stage is, told to whoever watches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

# The least time between two reports to one watcher, and the most.
SHORTEST_S = 0.1
LONGEST_S = 1.0


@dataclass(frozen=True, slots=True)
class LoadCounts:
    """Counts of this moment; `refused` is a total since the start."""

    draining: bool
    open_sessions: int
    open_segments: int
    held_segments: int
    refused: int


class LoadWatch:
    """`read` counts the sessions, so it is called only when its result may be told."""

    def __init__(
        self,
        read: Callable[[], LoadCounts],
        shortest_s: float = SHORTEST_S,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._read = read
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._closed = asyncio.Event()
        self._watchers: set[asyncio.Event] = set()

    def touch(self) -> None:
        """Something may have changed. Cheap: it is called with every fact."""
        for touched in self._watchers:
            touched.set()

    def close(self) -> None:
        """End all watches."""
        self._closed.set()
        self.touch()

    async def follow(self) -> AsyncGenerator[LoadCounts, None]:
        """The load now, and when it has changed, at intervals between the two bounds."""
        loop, touched = asyncio.get_running_loop(), asyncio.Event()
        told: LoadCounts | None = None
        told_at = 0.0
        self._watchers.add(touched)
        try:
            while not self._closed.is_set():
                touched.clear()
                load = self._read()
                if load != told or loop.time() >= told_at + self._longest_s:
                    yield load
                    told, told_at = load, loop.time()
                await _wait(self._closed, self._shortest_s)
                await _wait(touched, told_at + self._longest_s - loop.time())
        finally:
            self._watchers.discard(touched)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Return after so long, or when the event is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
