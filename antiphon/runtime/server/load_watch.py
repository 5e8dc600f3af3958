"""Streams the load of a stage to everyone who watches it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

# The minimum and maximum time between two reports to the same watcher. Reports double as signs of
# life, so the maximum is below the gateway's default `probe_interval_s`. A stage without sessions
# reports less often. No session depends on these reports, and in an idle fleet they would account
# for most of the CPU time.
SHORTEST_S = 0.1
LONGEST_S = 0.45
IDLE_LONGEST_S = 1.0


@dataclass(frozen=True, slots=True)
class LoadCounts:
    """The current load. `refused` is the total number of refusals since the process started."""

    draining: bool
    open_sessions: int
    open_segments: int
    held_segments: int
    refused: int


class LoadWatch:
    """Reports the load to watchers. `read` has to count the sessions, so it is called only when a
    report is due.
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
        """Note that the load has changed. This is called for every fact, so it must be cheap."""
        for touched in self._watchers:
            touched.set()

    def close(self) -> None:
        """End all watches."""
        self._closed.set()
        self.touch()

    async def follow(self) -> AsyncGenerator[LoadCounts, None]:
        """Yield the load immediately and then whenever it changes. The time between two reports
        stays within the minimum and the maximum.
        """
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
    """Wait until the event is set or the time has elapsed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
