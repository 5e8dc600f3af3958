"""The client of a conversation, as the conversation knows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Literal, Protocol

from antiphon.errors import AntiphonError
from antiphon_gateway.conversations.events import ConversationEvent
from antiphon_gateway.orders.order import Order
from antiphon_gateway.sessions.events import Event

Made = Literal["response", "transcript"]
"""What a conversation makes for its client, each a line of the access log."""


class LogEntry(Protocol):
    """What a log has of one response or transcript."""

    status: str

    def note(self, event: Event) -> None:
        """Take note of what was made."""

    def for_key(self, order: Order) -> Order:
        """Return the order with the key of the caller."""

    def admitted(self) -> AbstractContextManager[None]:
        """Return a context in which the order counts towards the limits of the key. Raises
        `ResourceExhausted`."""

    def counted(self) -> None:
        """It counts as one of those in a minute, but not of those at a time. Raises
        `ResourceExhausted`."""


RefuseResponse = Callable[[LogEntry, AntiphonError], Awaitable[None]]


class ConversationClient(Protocol):
    """Takes the events of a conversation, and has what is made for it logged."""

    async def send(self, events: Sequence[ConversationEvent]) -> None:
        """Return when the client has taken the events. Raises `Cancelled` when it has gone, or
        takes nothing in time."""

    def logged(self, made: Made, refuse: RefuseResponse) -> AbstractAsyncContextManager[LogEntry]:
        """A context that logs what is made in it; an error that leaves it goes to `refuse`."""
