"""Streams a stage's load to its watchers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

# The minimum and maximum interval between two reports to the same watcher. Reports also serve as
# signs of life, so the maximum is lower than the gateway's default `probe_interval_s`. A stage
# without sessions reports less often, because no session depends on it, and because reports account
# for most of the CPU time of an idle fleet.
SHORTEST_S = 0.1
LONGEST_S = 0.45
IDLE_LONGEST_S = 1.0


@dataclass(frozen=True, slots=True)
class LoadCounts:
    """The current load. `refused` is the total since the start of the process."""

    draining: bool
    open_sessions: int
    open_segments: int
    held_segments: int
    refused: int


class LoadWatch:
    """Reports the load to watchers. `read` counts the sessions, so it is only called if a report is
    due.
    """

    def __init__(
        self,
        read: Callable[[], LoadCounts],
        shortest_s: float = SHORTEST_S,
        longest_s: float = LONGEST_S,
        idle_longest_s: float = IDLE_LONGEST_S,
    ) -> None:
        self._read = read
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._idle_longest_s = idle_longest_s
        self._closed = asyncio.Event()
        self._watchers: set[asyncio.Event] = set()

    def touch(self) -> None:
        """Mark the load as changed. This is called for every fact, and must therefore be cheap."""
        for touched in self._watchers:
            touched.set()

    def close(self) -> None:
        """End all watches."""
        self._closed.set()
        self.touch()

    async def follow(self) -> AsyncGenerator[LoadCounts, None]:
        """Yield the load immediately and after each change, at intervals within the two limits."""
        loop, touched = asyncio.get_running_loop(), asyncio.Event()
        reported: LoadCounts | None = None
        reported_at = 0.0
        self._watchers.add(touched)
        try:
            while not self._closed.is_set():
                touched.clear()
                load, read_at = self._read(), loop.time()
                longest_s = self._longest_s if load.open_sessions else self._idle_longest_s
                if load != reported or read_at >= reported_at + longest_s:
                    yield load
                    reported, reported_at = load, read_at
                await _wait(touched, reported_at + longest_s - loop.time())
                if touched.is_set() and read_at + self._shortest_s > loop.time():
                    await _wait(self._closed, read_at + self._shortest_s - loop.time())
        finally:
            self._watchers.discard(touched)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set or the time is up."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
