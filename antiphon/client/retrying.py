"""When a call that failed is made again. Pure but for the clock and the dice it is given."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from antiphon.client.calls import Channel, Method, Request, Response
from antiphon.client.checks import number_between
from antiphon.errors import AntiphonError, InvalidArgument

MOST_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Retry:
    """When a call that failed is made again: before anything of its answer has come, and where
    an answer can be continued that was cut off by the loss of its server.

    Only errors that are `retryable` count. `attempts` are all tries together, 1 for no second
    one. The pause before the second is `pause_s`, then twice as long each time, up to
    `longest_pause_s`; a random part of up to half is taken off, so that clients do not come
    back together. A server that says when to come back (`retry_after_s`) is given that time
    beforehand. No try begins later than `within_s` after the first, or after the call's own
    deadline: the error is raised at once then. A part of an answer that has come counts as a first
    try of what follows.

    >>> client = antiphon.Client("localhost:50050", retry=antiphon.Retry(attempts=5))
    """

    attempts: int = 3
    within_s: float = 60.0
    pause_s: float = 0.5
    longest_pause_s: float = 8.0

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or not 1 <= self.attempts <= MOST_ATTEMPTS:
            raise InvalidArgument(
                f"retry.attempts: must be from 1 to {MOST_ATTEMPTS}", field="retry.attempts"
            )
        for name in ("within_s", "pause_s", "longest_pause_s"):
            number_between(f"retry.{name}", getattr(self, name), 0, 86_400)

    def pause_after(self, error: AntiphonError, tried: int, dice: float) -> float | None:
        """Seconds to the next try; None if there is none. `dice`: from 0 to 1."""
        if not error.retryable or tried >= self.attempts:
            return None
        own_s = min(self.pause_s * 2.0 ** (tried - 1), self.longest_pause_s)
        return error.retry_after_s + own_s * (1 - dice / 2)


class Attempts:
    """The tries of one call: how many there were, and the time that is left."""

    def __init__(
        self,
        retry: Retry,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._retry = retry
        self._clock, self._dice = clock, dice
        self._tried = 1
        self._failing_since = clock()
        self._ends_at = self._failing_since + timeout_s
        self._succeeded = False

    @property
    def left_s(self) -> float:
        """Seconds to the call's deadline."""
        return max(0.0, self._ends_at - self._clock())

    def succeeded(self) -> None:
        """Something has come: what fails from now on is tried as often, and as long, again."""
        self._succeeded = True

    def pause_after(self, error: AntiphonError) -> float | None:
        """Seconds to the next try, which is counted; None if the error is the call's."""
        if self._succeeded:
            self._succeeded, self._tried, self._failing_since = False, 1, self._clock()
        pause_s = self._retry.pause_after(error, self._tried, self._dice())
        last_try_at = min(self._failing_since + self._retry.within_s, self._ends_at)
        if pause_s is None or self._clock() + pause_s >= last_try_at:
            return None
        self._tried += 1
        return pause_s


async def ask(
    channel: Channel,
    method: Method[Request, Response],
    request: Request,
    timeout_s: float,
    retry: Retry,
) -> Response:
    """One answer to a call that changes nothing, tried again as `retry` says."""
    attempts, pauser = Attempts(retry, timeout_s), channel.pauser()
    while True:
        try:
            return await channel.ask(method, request, attempts.left_s)
        except AntiphonError as error:
            pause_s = attempts.pause_after(error)
            if pause_s is None:
                raise
        await pauser.pause(pause_s)
