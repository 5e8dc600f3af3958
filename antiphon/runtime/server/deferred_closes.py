"""Delays the end of a session until downstream stages have acknowledged its last chunks.

A client that has closed its side receives nothing more about a session once the session has ended.
If a link then lost the last chunks, the client would never notice. To prevent this, the end of the
session is held back until the chunks have been acknowledged. If they are lost, or aren't
acknowledged in time, the session ends with an error instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antiphon.errors import AntiphonError, DeadlineExceeded
from antiphon.runtime.session.instructions import End


class DeferredCloses:
    """Passes the end of each session to `release` exactly once. If the acknowledgement doesn't
    arrive within `timeout_s` seconds, the session ends with an error.
    """

    def __init__(self, release: Callable[[End], None], timeout_s: float) -> None:
        self._release = release
        self._timeout_s = timeout_s
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def hold(self, session_id: str) -> None:
        """Hold back the end of a session that has completed successfully on this stage."""
        if session_id not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[session_id] = loop.call_later(self._timeout_s, self._late, session_id)

    def let_go(self, session_id: str, error: AntiphonError | None = None) -> None:
        """Release the end of a session that was held back. Pass an `error` if the session's chunks
        were lost. Has no effect if the session is unknown.
        """
        timer = self._timers.pop(session_id, None)
        if timer is not None:
            timer.cancel()
            self._release(End(session_id, error))

    def close(self) -> None:
        """Discard everything that is being held back."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _late(self, session_id: str) -> None:
        late = f"the session's last chunks were not acknowledged within {self._timeout_s:g} s"
        self.let_go(session_id, DeadlineExceeded(late))
