"""The interface between a conversation and its client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Literal, Protocol

from antiphon.errors import AntiphonError
from antiphon_gateway.conversations.events import ConversationEvent
from antiphon_gateway.orders.order import Order
from antiphon_gateway.sessions.events import Event

Made = Literal["response", "transcript"]
"""The kinds of output that a conversation produces. Each output gets its own line in the access
log.
"""


class LogEntry(Protocol):
    """The log entry for one response or transcript."""

    status: str

    def note(self, event: Event) -> None:
        """Record an event of the output."""

    def for_key(self, order: Order) -> Order:
        """Return the order with the caller's API key filled in."""

    def admitted(self) -> AbstractContextManager[None]:
        """Return a context manager during which the order counts towards the key's limits.

        Raises `ResourceExhausted` if a limit has been reached.
        """

    def counted(self) -> None:
        """Count the order towards the requests per minute but not towards the concurrent requests.

        Raises `ResourceExhausted` if the limit has been reached.
        """


RefuseResponse = Callable[[LogEntry, AntiphonError], Awaitable[None]]


class ConversationClient(Protocol):
    """Receives a conversation's events and logs its outputs."""

    async def send(self, events: Sequence[ConversationEvent]) -> None:
        """Send events and wait until the client has received them.

        Raises `Cancelled` if the client has disconnected or has stopped reading.
        """

    def logged(self, made: Made, refuse: RefuseResponse) -> AbstractAsyncContextManager[LogEntry]:
        """Return a context manager that logs a response or a transcript. If an error is raised
        inside the context, it is passed to `refuse`.
        """
