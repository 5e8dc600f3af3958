"""Ends a conversation for reasons other than a request from its client or a shutdown of the
gateway.
"""

from __future__ import annotations

import asyncio

from antiphon.errors import AntiphonError


class ForcedEnd:
    """Forces a conversation to end. It can be set only once, after which `error` is sent to the
    client.
    """

    def __init__(self) -> None:
        self.error: AntiphonError | None = None
        self._set = asyncio.Event()

    def end(self, error: AntiphonError) -> None:
        """End the conversation. Only the first call has an effect."""
        if self.error is None:
            self.error = error
            self._set.set()

    async def wait(self) -> None:
        """Wait until the conversation has to end."""
        await self._set.wait()
