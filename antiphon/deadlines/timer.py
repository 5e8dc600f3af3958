"""A single event loop timer that knows when it was due and how late it ran.

If a callback is due immediately, uvloop returns a handle without `when()`, so this module keeps
track of the due time itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timer:
    """Calls `run` with the number of seconds by which the call is late. There is at most one
    pending call.
    """

    def __init__(self, run: Callable[[float], None]) -> None:
        self._run = run
        self._handle: asyncio.Handle | None = None
        self._due_at: float | None = None

    @property
    def due_at(self) -> float | None:
        """The time at which the pending call is due, on the event loop's clock. None if there is no
        pending call.
        """
        return self._due_at

    def set_at(self, moment: float) -> None:
        """Schedule the call for `moment` on the event loop's clock, replacing any pending call."""
        if self._due_at == moment:
            return
        self.cancel()
        loop = asyncio.get_running_loop()
        self._due_at = moment
        self._handle = loop.call_at(moment, self._expire, loop, moment)

    def cancel(self) -> None:
        """Cancel the pending call, if any."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._due_at = None

    def _expire(self, loop: asyncio.AbstractEventLoop, moment: float) -> None:
        self._handle = self._due_at = None
        self._run(loop.time() - moment)
