"""Ends of sessions whose last chunks a downstream stage has not acknowledged yet.

A client that has closed its side hears no more of a session after its end. If the link
with the last chunks were given up then, nobody would ever know: so the end waits until
they are acknowledged, and becomes an error when they cannot be, or not in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antiphon.errors import AntiphonError, DeadlineExceeded
from antiphon.runtime.session.instructions import End


class DeferredCloses:
    """`release` gets each end once; without a word from the link, after `timeout_s`."""

    def __init__(self, release: Callable[[End], None], timeout_s: float) -> None:
        self._release = release
        self._timeout_s = timeout_s
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def hold(self, session_id: str) -> None:
        """A session has ended well, as far as this stage knows."""
        if session_id not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[session_id] = loop.call_later(self._timeout_s, self._late, session_id)

    def let_go(self, session_id: str, error: AntiphonError | None = None) -> None:
        """Its chunks have come, or cannot; of a session that is not held nothing is said."""
        timer = self._timers.pop(session_id, None)
        if timer is not None:
            timer.cancel()
            self._release(End(session_id, error))

    def close(self) -> None:
        """Nobody is told any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _late(self, session_id: str) -> None:
        late = f"the session's last chunks were not acknowledged in {self._timeout_s:g} s"
        self.let_go(session_id, DeadlineExceeded(late))
