"""Determines which error to report if a single cause makes several stages of a session fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antiphon.errors import AntiphonError, ErrorCode

ROOT_CAUSE_WAIT_S = 0.5

ECHO_CODES = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.DATA_LOSS, ErrorCode.CANCELLED})
"""The codes that a stage may report when another stage has failed. They can also be the stage's own
errors.
"""


class RootCause:
    """Calls `end` with the error that ends a session. If the error may be the consequence of
    another one, it waits briefly before it does so.

    If the original error arrives during this wait, it is reported instead.
    """

    def __init__(self, end: Callable[[AntiphonError], None]) -> None:
        self._end = end
        self._timer: asyncio.TimerHandle | None = None
        self.echo: AntiphonError | None = None

    def fail(self, error: AntiphonError) -> None:
        """Report an error that no other error has caused."""
        self._end(error)

    def fail_or_echo(self, error: AntiphonError) -> None:
        """Report an error that another error may have caused. Only the first such error counts."""
        if self.echo is None:
            self.echo = error
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ROOT_CAUSE_WAIT_S, self._end, error)

    def close(self) -> None:
        """Discard a pending error."""
        if self._timer is not None:
            self._timer.cancel()
