"""A bound on each of many short waits, for less than a timer each.

`asyncio.timeout` around every write would set a timer and cancel it thousands of times before
one expires. Here one timer looks when the first write could be late, and no sooner. Time for which
the event loop itself stood still at the deadline does not count.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from antiphon.deadlines.awake_deadline import ON_TIME_S, SLICE_S
from antiphon.deadlines.timer import Timer


class WaitDeadline:
    """Around many waits, one after the other: `TimeoutError` when one takes `timeout_s`.

    The wait in question is cancelled. Enter it in the task that waits; `begin` and `end` each wait.
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
        """A wait begins."""
        self._began = self._loop.time()
        if self._timer.due_at is None:
            self._timer.set_at(self._began + self._timeout_s)

    def end(self) -> None:
        """It is over."""
        self._began = None

    def _look(self, late_s: float) -> None:
        if self._began is None:
            return
        now = self._loop.time()
        late_at = self._began + self._timeout_s
        if now < late_at:
            self._timer.set_at(late_at)
        elif late_s > ON_TIME_S:
            # What has come meanwhile is read in the next slice.
            self._began += late_s
            self._timer.set_at(max(self._began + self._timeout_s, now + SLICE_S))
        else:
            self._limit.reschedule(late_at)
