"""A single timer on the event loop that reports when it was due and how late it ran.

uvloop returns a handle without `when()` if a callback is due immediately, so this module stores the
due time itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timer:
    """Calls `run` and passes how late the call is, in seconds. At most one call is pending."""

    def __init__(self, run: Callable[[float], None]) -> None:
        self._run = run
        self._handle: asyncio.Handle | None = None
        self._due_at: float | None = None

    @property
    def due_at(self) -> float | None:
        """The time at which the pending call is due, on the loop's clock, or None if no call is
        pending.
        """
        return self._due_at

    def set_at(self, moment: float) -> None:
        """Schedule the call at `moment` on the loop's clock. This replaces a pending call."""
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
