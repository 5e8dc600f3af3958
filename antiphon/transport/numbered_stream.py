"""One end of a stream that can continue on a new call when its current call breaks.

Each end numbers the messages it sends and keeps them until the other end has confirmed them. It
also counts the messages it receives. When the stream continues on a new call, the ends exchange
their counts, and each one resends what the other hasn't received. As a result, every message
arrives exactly once and in order. This module performs no I/O.

The number of kept messages and their total size are limited. An end that has reached a limit (see
`is_full`) can only send confirmations. Confirmations aren't numbered, so two full ends don't block
each other.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from antiphon.errors import DataLoss
from antiphon.transport.response_log import ResponseLog

KEPT_BYTES = 4 << 20
KEPT_MESSAGES = 4096
CONFIRMED_BYTES = 256 << 10
CONFIRMED_MESSAGES = 256
"""Confirmations are normally attached to outgoing messages. Once this much has been received
without being confirmed, a confirmation is sent on its own.
"""

Message = TypeVar("Message")


class NumberedStream(Generic[Message]):
    """The messages sent by one end, and the number of messages it has received."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self.received = 0
        """The number of messages that have arrived from the other end."""
        self._kept_bytes = kept_bytes
        self._log: ResponseLog[tuple[Message, int]] = ResponseLog()
        self._log_bytes = 0
        self._again: deque[tuple[Message, int]] = deque()
        self._confirmed = self._unconfirmed_bytes = 0
        self._waited_for = -1
        self._is_due = False

    @property
    def oldest(self) -> int:
        """The number of the oldest message that the other end hasn't confirmed."""
        return self._log.first

    @property
    def is_confirmed(self) -> bool:
        """Whether the other end has confirmed all messages."""
        return self._log.first == self._log.count

    @property
    def is_quiet(self) -> bool:
        """Whether neither end has anything to confirm."""
        return self.is_confirmed and self._confirmed == self.received

    @property
    def log_bytes(self) -> int:
        """The total size in bytes of the messages that the other end hasn't confirmed."""
        return self._log_bytes

    @property
    def is_full(self) -> bool:
        """Whether the end must stop sending until the other end has confirmed some messages."""
        kept = self._log.count - self._log.first
        return self._log_bytes >= self._kept_bytes or kept >= KEPT_MESSAGES

    @property
    def owes_count(self) -> bool:
        """Whether a confirmation should be sent now."""
        unconfirmed = self.received - self._confirmed
        is_much = unconfirmed >= CONFIRMED_MESSAGES or self._unconfirmed_bytes >= CONFIRMED_BYTES
        return is_much or self._is_due

    def unconfirmed_for_long(self) -> bool:
        """Check for received messages that have gone unconfirmed since the previous call. Call this
        at regular intervals. If no outgoing message has confirmed them in the meantime,
        `owes_count` becomes true. Returns whether that is the case.
        """
        waits = self._confirmed < self.received
        self._is_due = waits and self._waited_for == self._confirmed
        self._waited_for = self._confirmed if waits else -1
        return self._is_due

    def arrived(self, size_bytes: int) -> None:
        """Count a message that has arrived from the other end."""
        self.received += 1
        self._unconfirmed_bytes += size_bytes

    def count(self) -> int:
        """Return the number of received messages, to be included in a message that is about to be
        sent.
        """
        self._confirmed, self._unconfirmed_bytes, self._is_due = self.received, 0, False
        return self.received

    def sent(self, message: Message, size_bytes: int) -> None:
        """Keep a message that is being sent for the first time. Call this only if `again` has
        returned None.
        """
        self._log.append((message, size_bytes))
        self._log_bytes += size_bytes

    def again(self) -> Message | None:
        """Return the next message to resend, or None if there is none."""
        return self._again.popleft()[0] if self._again else None

    def confirmed(self, count: int) -> None:
        """Record that the other end has received at least the first `count` messages. Raises
        `DataLoss` if fewer messages were sent.
        """
        if count > self._log.count - len(self._again):
            raise DataLoss(f"{count} messages were confirmed, {self._log.count} were sent")
        self._log_bytes -= sum(size_bytes for _, size_bytes in self._log.confirmed(count))

    def clear(self) -> None:
        """Drop all messages, because the stream is over."""
        self._again.clear()
        self._log.confirmed(self._log.count)
        self._log_bytes = 0

    def rewind(self, count: int) -> None:
        """Prepare to resend all messages after the first `count`. Raises `DataLoss` if `count` is
        higher than the number of messages sent, or if some of these messages are no longer kept.
        """
        if not self._log.first <= count <= self._log.count:
            raise DataLoss(
                f"the stream would continue at message {count}; "
                f"{self._log.first} to {self._log.count} are kept"
            )
        self._again.clear()
        self.confirmed(count)
        self._again.extend(self._log.since(count))
