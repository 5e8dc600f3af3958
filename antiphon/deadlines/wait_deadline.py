"""A timeout for each of many short waits, for less than one timer each.

`asyncio.timeout` around every write would set and cancel thousands of timers for each one that
expires. Here, one timer checks when the first write could be late. Time during which the event loop
was blocked at the deadline does not count.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from antiphon.deadlines.awake_deadline import ON_TIME_S, SLICE_S
from antiphon.deadlines.timer import Timer


class WaitDeadline:
    """A context for consecutive waits. Raises `TimeoutError` when one takes `timeout_s`.

    The wait is cancelled. Enter the context in the task that waits. Call `begin` and `end` around
    each wait.
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
        """Start timing a wait."""
        self._began = self._loop.time()
        if self._timer.due_at is None:
            self._timer.set_at(self._began + self._timeout_s)

    def end(self) -> None:
        """Stop timing it."""
        self._began = None

    def _look(self, late_s: float) -> None:
        if self._began is None:
            return
        now = self._loop.time()
        late_at = self._began + self._timeout_s
        if now < late_at:
            self._timer.set_at(late_at)
        elif late_s > ON_TIME_S:
            # Data received in the meantime is read in the next slice.
            self._began += late_s
            self._timer.set_at(max(self._began + self._timeout_s, now + SLICE_S))
        else:
            self._limit.reschedule(late_at)
