"""Ends conversations that clients haven't ended themselves, regardless of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.errors import Cancelled
from antiphon_gateway.admission.reservation import shutting_down
from antiphon_gateway.conversations.conversation import LiveConversation


@asynccontextmanager
async def until_stopped(live: LiveConversation) -> AsyncIterator[None]:
    """Cancel the block when the conversation is idle during shutdown or when it is forced to end
    (`LiveConversation.forced_end`).

    In the first case, `Unavailable` is raised. In the second case, the error of the forced end is
    raised. The error must be the last message to the client.
    """
    limit = asyncio.timeout(None)

    def cut() -> None:
        limit.reschedule(asyncio.get_running_loop().time())

    async def watch() -> None:
        try:
            await live.stopped()
        except Cancelled:
            # The client has disconnected. The code that reads its messages notices this as well.
            return
        cut()

    async def watch_forced_end() -> None:
        await live.forced_end.wait()
        cut()

    try:
        async with limit:
            watching = [asyncio.create_task(each()) for each in (watch, watch_forced_end)]
            try:
                yield
            finally:
                for each in watching:
                    each.cancel()
                await asyncio.wait(watching)
                for each in watching:
                    if not each.cancelled() and (error := each.exception()) is not None:
                        raise error
    except TimeoutError:
        if not limit.expired():
            raise
        raise live.forced_end.error or shutting_down() from None
