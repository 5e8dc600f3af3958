"""How a conversation ends when the gateway stops, whatever its protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.errors import Cancelled
from gateway.calls.place import shutting_down
from gateway.conversations.conversation import LiveConversation


@asynccontextmanager
async def until_stopped(live: LiveConversation) -> AsyncIterator[None]:
    """Cut the block short when the conversation is over because the gateway stops.

    Raises `Unavailable` then, which the client is to be told last of all.
    """
    limit = asyncio.timeout(None)

    async def watch() -> None:
        try:
            await live.stopped()
        except Cancelled:
            return  # The client has gone; who reads what it sends notices, too.
        limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with limit:
            watching = asyncio.create_task(watch())
            try:
                yield
            finally:
                watching.cancel()
                await asyncio.wait([watching])
                if not watching.cancelled() and (error := watching.exception()) is not None:
                    raise error
    except TimeoutError:
        if not limit.expired():
            raise
        raise shutting_down() from None
