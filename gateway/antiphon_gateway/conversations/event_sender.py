"""Sends events to the client, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from antiphon_gateway.conversations.events import ConversationEvent

SendEvents = Callable[[Sequence[ConversationEvent]], Awaitable[None]]
"""Either `ConversationClient.send` or a function that wraps it."""


class EventSender:
    """Sends the events of commands and responses, which run concurrently.

    There is no queue. The sender waits for the client, which in turn slows down the stages that are
    generating the response.
    """

    def __init__(self, send: SendEvents) -> None:
        self._send = send
        self._order = asyncio.Lock()

    async def tell(self, *events: ConversationEvent) -> None:
        """Send several events in a row, with no other events in between."""
        async with self._order:
            await self._send(events)

    async def tell_if(
        self, wanted: Callable[[], bool], events: Callable[[], Sequence[ConversationEvent]]
    ) -> None:
        """Wait for this sender's turn. Then, if the events are still wanted, create and
        send them.
        """
        async with self._order:
            if wanted() and (told := events()):
                await self._send(told)
