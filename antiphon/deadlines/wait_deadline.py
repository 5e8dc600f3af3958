"""A timeout for many short waits that needs less than one timer per wait.

With `asyncio.timeout` around every write, thousands of timers would be set and cancelled for each
one that expires. Instead, a single timer runs at the time when the current wait could first be
late. If the event loop was blocked at that time, the blocked time doesn't count.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from antiphon.deadlines.awake_deadline import ON_TIME_S, SLICE_S
from antiphon.deadlines.timer import Timer


class WaitDeadline:
    """A context manager for a series of waits. If any of them takes longer than `timeout_s`
    seconds, it is cancelled and `TimeoutError` is raised.

    The context must be entered in the task that waits. Call `begin` before each wait and `end`
    after it.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None
        self._timer = Timer(self._look)
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> WaitDeadline:
        await self._limit.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def begin(self) -> None:
        """Start measuring a wait."""
        self._began = self._loop.time()
        if self._timer.due_at is None:
            self._timer.set_at(self._began + self._timeout_s)

    def end(self) -> None:
        """Stop measuring the wait."""
        self._began = None

    def _look(self, late_s: float) -> None:
        if self._began is None:
            return
        now = self._loop.time()
        late_at = self._began + self._timeout_s
        if now < late_at:
            self._timer.set_at(late_at)
        elif late_s > ON_TIME_S:
            # Data that has arrived in the meantime is read during the next slice.
            self._began += late_s
            self._timer.set_at(max(self._began + self._timeout_s, now + SLICE_S))
        else:
            self._limit.reschedule(late_at)
