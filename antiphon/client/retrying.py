"""The retry policy for failed calls. Its only side effects are reading the clock, drawing random
numbers and logging.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from antiphon.client.calls import Channel, Method, Pauser, Request, Response
from antiphon.client.checks import number_between
from antiphon.client.connection import Contact
from antiphon.errors import AntiphonError, InvalidArgument, Unavailable

log = logging.getLogger("antiphon.client")

MOST_ATTEMPTS = 100
LEAST_PAUSE_S = 0.001
LONGEST_S = 86_400
_MOST_DOUBLINGS = 64
_NEVER_ANSWERED = (
    "; no server has responded at this address: check the address, or wait longer with "
    "retry=Retry(connect_within_s=...)"
)


@dataclass(frozen=True, slots=True)
class Retry:
    """Determines when the client retries a failed call.

    A call is retried if none of its answer has been received yet. It is also retried if a server
    can continue the answer or the conversation. That can be another server, or the same one after a
    restart.

    A server counts as unreachable if the connection is refused or broken, if its name cannot be
    resolved, or if the server is shutting down. The client then retries for up to `within_s`
    seconds after the first failure. If the server has never responded to this client, the address
    may be wrong, so the limit is `connect_within_s` instead. Any other `retryable` error, such as a
    lack of free slots, counts as one of `attempts`. Set `attempts` to 1 to disable all retries.

    The first pause lasts `pause_s` seconds. Each further pause is twice as long, up to
    `longest_pause_s`. Each pause is shortened at random by up to half, so that clients do not all
    retry at the same time. If the server's error has a `retry_after_s`, it is added to the pause.
    No attempt starts more than `within_s` seconds after the first failure or after the call's
    deadline. Receiving a message resets the counts.

    >>> client = antiphon.Client("localhost:50050", retry=antiphon.Retry(within_s=300.0))

    To wait for a server that starts later, use `Retry(connect_within_s=300.0, within_s=300.0)`.
    """

    attempts: int = 3
    within_s: float = 60.0
    pause_s: float = 0.5
    longest_pause_s: float = 2.0
    connect_within_s: float = 5.0

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or not 1 <= self.attempts <= MOST_ATTEMPTS:
            raise InvalidArgument(
                f"retry.attempts: must be from 1 to {MOST_ATTEMPTS}", field="retry.attempts"
            )
        for name in ("within_s", "connect_within_s"):
            number_between(f"retry.{name}", getattr(self, name), 0, LONGEST_S)
        for name in ("pause_s", "longest_pause_s"):
            number_between(f"retry.{name}", getattr(self, name), LEAST_PAUSE_S, LONGEST_S)


def server_is_away(error: AntiphonError) -> bool:
    """Return whether the server itself is unreachable or shutting down. Errors from stages don't
    count.
    """
    return isinstance(error, Unavailable) and not error.stage


class Attempts:
    """Tracks the failures of a single call and the time that is left for it."""

    def __init__(
        self,
        retry: Retry,
        timeout_s: float,
        contact: Contact,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._retry = retry
        self._contact = contact
        self._clock, self._dice = clock, dice
        self._ends_at = clock() + timeout_s
        self._failed = self._refused = 0
        self._failing_since = 0.0

    @property
    def left_s(self) -> float:
        """The number of seconds until the call's deadline."""
        return max(0.0, self._ends_at - self._clock())

    def succeeded(self) -> None:
        """Reset the counts, because a message was received."""
        self._failed = self._refused = 0

    def pause_after(self, error: AntiphonError) -> float | None:
        """Return the number of seconds until the next attempt, or None if the call must not be
        retried.
        """
        retry, now = self._retry, self._clock()
        if not self._failed:
            self._failing_since = now
        self._failed += 1
        self._refused += not server_is_away(error)
        if not error.retryable or retry.attempts == 1 or self._refused >= retry.attempts:
            return None
        doubled_s = retry.pause_s * 2.0 ** min(self._failed - 1, _MOST_DOUBLINGS)
        own_s = min(doubled_s, retry.longest_pause_s) * (1 - self._dice() / 2)
        within_s = retry.within_s
        if not self._contact.made:
            within_s = min(within_s, retry.connect_within_s)
        left_s = self._failing_since + within_s - now
        # The last attempt is made when the time runs out, even if this makes the preceding pause
        # shorter.
        pause_s = min(error.retry_after_s + own_s, left_s)
        if left_s <= error.retry_after_s or pause_s >= self._ends_at - now:
            return None
        if self._failed == 1:
            log.warning("%s; retrying for up to %.0f s", error, min(left_s, self._ends_at - now))
        log.debug("attempt %d failed: %s; retrying in %.2f s", self._failed, error, pause_s)
        return pause_s

    async def pause(self, error: AntiphonError, pauser: Pauser) -> None:
        """Wait until the next attempt. If there won't be another attempt, raises the error."""
        pause_s = self.pause_after(error)
        if pause_s is None:
            raise self.ended(error) from error.__cause__
        await pauser.pause(pause_s)

    def ended(self, error: AntiphonError, last: AntiphonError | None = None) -> AntiphonError:
        """Return the error to raise after the `last` attempt.

        If the server is unreachable, the error message states how many attempts were made and how
        long they took.
        """
        if self._failed < 2 or not server_is_away(error):
            return error
        tried_s = self._clock() - self._failing_since
        later = "" if last is None or last.message == error.message else f"; then {last.message}"
        never = "" if self._contact.made else _NEVER_ANSWERED
        return Unavailable(
            f"{error.message}{later} (attempts: {self._failed} in {tried_s:.1f} s){never}",
            edge=error.edge,
            retry_after_s=error.retry_after_s,
        )


async def ask(
    channel: Channel,
    method: Method[Request, Response],
    request: Request,
    timeout_s: float,
    retry: Retry,
) -> Response:
    """Make a call that has no side effects and retry it as configured by `retry`."""
    attempts, pauser = Attempts(retry, timeout_s, channel.contact), channel.pauser()
    while True:
        try:
            return await channel.ask(method, request, attempts.left_s)
        except AntiphonError as error:
            failure = error
        await attempts.pause(failure, pauser)
