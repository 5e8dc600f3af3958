"""A timer that asks the model to continue if the user doesn't say anything after an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class IdleTimer:
    """Calls `ring` when the time is up, unless the timer has been stopped.

    `ring` first waits for other work to finish. After that, it must check `due`, because the timer
    may have been stopped in the meantime.
    """

    def __init__(self, ring: Callable[[], Awaitable[None]]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._ringing: asyncio.Task[None] | None = None
        self.due = False

    def start(self, seconds: float) -> None:
        """Start the timer. If it is already running, it is restarted."""
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._over)

    def stop(self) -> None:
        """Stop the timer."""
        self.due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        """Stop the timer. If `ring` is running, it is cancelled."""
        self.stop()
        if self._ringing is not None:
            self._ringing.cancel()
            await asyncio.gather(self._ringing, return_exceptions=True)

    def _over(self) -> None:
        self.due = True
        if self._ringing is None or self._ringing.done():
            self._ringing = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._ring()
