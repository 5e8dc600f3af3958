"""Events on their way to the client, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from antiphon_gateway.conversations.events import ConversationEvent

SendEvents = Callable[[Sequence[ConversationEvent]], Awaitable[None]]
"""`ConversationClient.send`, or what stands before it."""


class EventSender:
    """Sends the events of commands and of concurrent responses.

    There is no queue: the sender of an event waits for the client, and so do the stages upstream of
    a response.
    """

    def __init__(self, send: SendEvents) -> None:
        self._send = send
        self._order = asyncio.Lock()

    async def tell(self, *events: ConversationEvent) -> None:
        """Send these events without others between them."""
        async with self._order:
            await self._send(events)

    async def tell_if(
        self, wanted: Callable[[], bool], events: Callable[[], Sequence[ConversationEvent]]
    ) -> None:
        """Create and send events if they are still wanted when it is their turn."""
        async with self._order:
            if wanted() and (told := events()):
                await self._send(told)
