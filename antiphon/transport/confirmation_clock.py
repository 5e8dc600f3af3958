"""Timers for a numbered stream. They decide when an end sends confirmations and when it gives up on
a call on which nothing arrives.

TCP either delivers the data or reports that the connection is broken. HTTP/2 may do neither. If a
byte in a frame header or a message length is damaged, the receiver waits forever, although the
connection itself still works. Each end therefore confirms received messages within a second and
gives up on a call if its oldest message stays unconfirmed for too long. An end that is waiting for
messages also requests a confirmation from time to time.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from antiphon.transport.numbered_stream import NumberedStream

TICK_S = 0.5
CONFIRMED_WITHIN_S = 5.0
STALLED_TICKS = round(CONFIRMED_WITHIN_S / TICK_S)
"""The timeout is counted in ticks rather than measured with a clock. If the event loop is blocked,
a tick is delayed, but the block counts as one tick at most.
"""
ASK_TICKS, MOST_ASK_TICKS = 2, 120
"""The number of silent ticks before the first request for a confirmation, and the maximum number of
ticks between two requests.
"""


class ClockedEnd(Protocol):
    """The interface that one end of a numbered stream implements."""

    def confirm(self) -> None:
        """Send a confirmation, because `NumberedStream.owes_count` has become true."""

    def give_call_up(self) -> None:
        """End the call, because the other end has stopped confirming messages."""


class AskingEnd(Protocol):
    """An end that expects messages although it has nothing to send."""

    @property
    def waits(self) -> bool:
        """Whether the end is waiting for messages."""

    def ask(self) -> None:
        """Send a message that the other end has to confirm."""


class ConfirmationClock:
    """The clock of one end. It stops when both ends have confirmed everything and this end isn't
    waiting for messages. Without `asking`, it never is.

    Call `start` after sending or receiving a message, and call `stop` when the call is over.
    """

    def __init__(
        self, stream: NumberedStream[Any], end: ClockedEnd, asking: AskingEnd | None = None
    ) -> None:
        self._stream = stream
        self._end = end
        self._asking = asking
        self._timer: asyncio.TimerHandle | None = None
        self._forget()

    def start(self) -> None:
        """Start the clock if it isn't running. It stops by itself when there is nothing left to
        wait for.
        """
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._forget()

    def _forget(self) -> None:
        self._oldest = self._moved = -1
        self._unconfirmed_ticks = self._silent_ticks = 0
        self._ask_ticks = ASK_TICKS

    def _tick(self) -> None:
        self._timer = None
        if self._stream.unconfirmed_for_long():
            self._end.confirm()
        if self._is_stalled():
            self.stop()
            self._end.give_call_up()
            return
        asking = self._asking
        waits = asking is not None and asking.waits
        self._note_silence(asking if waits else None)
        if waits or not self._stream.is_quiet:
            self.start()

    def _is_stalled(self) -> bool:
        """Return whether the oldest message has been unconfirmed for too long. Called once per
        tick.
        """
        oldest = self._stream.oldest
        is_older = not self._stream.is_confirmed and oldest == self._oldest
        self._unconfirmed_ticks = self._unconfirmed_ticks + 1 if is_older else 0
        self._oldest = oldest
        return self._unconfirmed_ticks >= STALLED_TICKS

    def _note_silence(self, waiting: AskingEnd | None) -> None:
        """Request a confirmation if an end is waiting and nothing has been received for a while.
        The interval doubles after each request.
        """
        received = self._stream.received
        if received != self._moved:
            self._moved, self._silent_ticks, self._ask_ticks = received, 0, ASK_TICKS
        elif waiting is not None:
            self._silent_ticks += 1
            if self._silent_ticks >= self._ask_ticks:
                self._silent_ticks = 0
                self._ask_ticks = min(2 * self._ask_ticks, MOST_ASK_TICKS)
                waiting.ask()
