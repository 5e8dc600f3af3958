"""Decides which error to report when a single cause makes several stages of a session fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antiphon.errors import AntiphonError, ErrorCode

ROOT_CAUSE_WAIT_S = 0.5

ECHO_CODES = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.DATA_LOSS, ErrorCode.CANCELLED})
"""Error codes that a stage may report because another stage has failed. A stage can also report
them for errors of its own.
"""


class RootCause:
    """Calls `end` with the error that ends a session. If the error may be a consequence of another
    one, this waits briefly first.

    If the original error arrives in the meantime, it is reported instead.
    """

    def __init__(self, end: Callable[[AntiphonError], None]) -> None:
        self._end = end
        self._timer: asyncio.TimerHandle | None = None
        self.echo: AntiphonError | None = None

    def fail(self, error: AntiphonError) -> None:
        """Report an error that wasn't caused by another error."""
        self._end(error)

    def fail_or_echo(self, error: AntiphonError) -> None:
        """Report an error that may have been caused by another error. Only the first such error
        counts.
        """
        if self.echo is None:
            self.echo = error
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ROOT_CAUSE_WAIT_S, self._end, error)

    def close(self) -> None:
        """Discard a pending error."""
        if self._timer is not None:
            self._timer.cancel()
