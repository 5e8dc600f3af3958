"""Events on their way to the client, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from antiphon_gateway.conversations.events import ConversationEvent

SendEvents = Callable[[Sequence[ConversationEvent]], Awaitable[None]]
"""`ConversationClient.send`, or what stands before it."""


class EventSender:
    """Everything that is told goes through here, from the commands and from responses beside them.

    There is no queue: who tells waits for the client, and so do the stages behind a response.
    """

    def __init__(self, send: SendEvents) -> None:
        self._send = send
        self._order = asyncio.Lock()

    async def tell(self, *events: ConversationEvent) -> None:
        """Tell these events with no other between them."""
        async with self._order:
            await self._send(events)

    async def tell_if(
        self, wanted: Callable[[], bool], events: Callable[[], Sequence[ConversationEvent]]
    ) -> None:
        """Make and tell events if, when it is their turn, they are still wanted."""
        async with self._order:
            if wanted() and (told := events()):
                await self._send(told)
