"""Defers the end of a session until downstream stages have acknowledged its last chunks.

A client that has closed its side receives nothing about a session after its end. If the link with
the last chunks failed after that, the loss would go unnoticed. So the end waits for the
acknowledgement, and becomes an error if the chunks are lost or not acknowledged in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antiphon.errors import AntiphonError, DeadlineExceeded
from antiphon.runtime.session.instructions import End


class DeferredCloses:
    """Passes each end to `release` once; after `timeout_s` without acknowledgement as an error."""

    def __init__(self, release: Callable[[End], None], timeout_s: float) -> None:
        self._release = release
        self._timeout_s = timeout_s
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def hold(self, session_id: str) -> None:
        """Defer the end of a session that has finished without error on this stage."""
        if session_id not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[session_id] = loop.call_later(self._timeout_s, self._late, session_id)

    def let_go(self, session_id: str, error: AntiphonError | None = None) -> None:
        """Release a session's end, with `error` if its chunks are lost. Ignores unknown
        sessions."""
        timer = self._timers.pop(session_id, None)
        if timer is not None:
            timer.cancel()
            self._release(End(session_id, error))

    def close(self) -> None:
        """Discard all deferred ends."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _late(self, session_id: str) -> None:
        late = f"the session's last chunks were not acknowledged in {self._timeout_s:g} s"
        self.let_go(session_id, DeadlineExceeded(late))
