"""One end of a stream that continues on another call after its call has broken.

Each end numbers what it sends, keeps it until the other end has confirmed it, and counts what it
receives. When the stream continues, each end learns the count of the other, and sends again what
follows it. So every message arrives once and in order. This module performs no I/O.

What is kept is bounded. An end that `is_full` sends only confirmations, which are not numbered, so
two full ends do not wait for each other.
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
"""What is received is confirmed without waiting for a message to the other end, once it is so
much."""

Message = TypeVar("Message")


class NumberedStream(Generic[Message]):
    """The messages that one end sends, and the number of those that it receives."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self.received = 0
        """How many messages of the other end have arrived."""
        self._kept_bytes = kept_bytes
        self._log: ResponseLog[tuple[Message, int]] = ResponseLog()
        self._log_bytes = 0
        self._again: deque[tuple[Message, int]] = deque()
        self._confirmed = self._unconfirmed_bytes = 0
        self._waited_for = -1
        self._is_due = False

    @property
    def oldest(self) -> int:
        """The number of the first message that the other end has not confirmed."""
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
    def is_full(self) -> bool:
        """Whether no more may be sent until the other end has confirmed something."""
        kept = self._log.count - self._log.first
        return self._log_bytes >= self._kept_bytes or kept >= KEPT_MESSAGES

    @property
    def owes_count(self) -> bool:
        """Whether `received` should be confirmed now."""
        unconfirmed = self.received - self._confirmed
        is_much = unconfirmed >= CONFIRMED_MESSAGES or self._unconfirmed_bytes >= CONFIRMED_BYTES
        return is_much or self._is_due

    def unconfirmed_for_long(self) -> bool:
        """Note that some time has passed. Return whether `owes_count` is now true because nothing
        was sent in the meantime that would have confirmed what was received."""
        waits = self._confirmed < self.received
        self._is_due = waits and self._waited_for == self._confirmed
        self._waited_for = self._confirmed if waits else -1
        return self._is_due

    def arrived(self, size_bytes: int) -> None:
        """Count a message of the other end."""
        self.received += 1
        self._unconfirmed_bytes += size_bytes

    def count(self) -> int:
        """`received`, for a message that leaves now."""
        self._confirmed, self._unconfirmed_bytes, self._is_due = self.received, 0, False
        return self.received

    def sent(self, message: Message, size_bytes: int) -> None:
        """Keep a message that is sent for the first time. Only call it if `again` has returned
        None."""
        self._log.append((message, size_bytes))
        self._log_bytes += size_bytes

    def again(self) -> Message | None:
        """The next message that has to be sent again; None if there is none."""
        return self._again.popleft()[0] if self._again else None

    def confirmed(self, count: int) -> None:
        """The other end has received the first `count` messages, or more. Raises `DataLoss` if
        fewer were sent."""
        if count > self._log.count - len(self._again):
            raise DataLoss(f"{count} messages were confirmed, {self._log.count} were sent")
        self._log_bytes -= sum(size_bytes for _, size_bytes in self._log.confirmed(count))

    def clear(self) -> None:
        """Drop all messages, because the stream is over."""
        self._again.clear()
        self._log.confirmed(self._log.count)
        self._log_bytes = 0

    def rewind(self, count: int) -> None:
        """Send again all that follows the first `count` messages. Raises `DataLoss` if they are not
        what was sent and not yet confirmed."""
        if not self._log.first <= count <= self._log.count:
            raise DataLoss(
                f"the stream would continue at message {count}; "
                f"{self._log.first} to {self._log.count} are kept"
            )
        self._again.clear()
        self.confirmed(count)
        self._again.extend(self._log.since(count))
