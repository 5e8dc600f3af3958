"""Choose which error of a session to report, if several stages fail for one cause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antiphon.errors import AntiphonError, ErrorCode

ROOT_CAUSE_WAIT_S = 0.5

ECHO_CODES = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.DATA_LOSS, ErrorCode.CANCELLED})
"""What stages say when another has died, and may say of themselves."""


class RootCause:
    """Calls `end` with an error: at once with a cause, after a moment with a possible consequence.

    A cause that arrives during that moment replaces the consequence.
    """

    def __init__(self, end: Callable[[AntiphonError], None]) -> None:
        self._end = end
        self._timer: asyncio.TimerHandle | None = None
        self.echo: AntiphonError | None = None

    def fail(self, error: AntiphonError) -> None:
        """An error that is its own cause."""
        self._end(error)

    def fail_or_echo(self, error: AntiphonError) -> None:
        """Add an error that another error may have caused; the first such error counts."""
        if self.echo is None:
            self.echo = error
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ROOT_CAUSE_WAIT_S, self._end, error)

    def close(self) -> None:
        """Cancel a pending error."""
        if self._timer is not None:
            self._timer.cancel()
