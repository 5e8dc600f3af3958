"""A conversation's end that neither its client nor the gateway's shutdown has asked for."""

from __future__ import annotations

import asyncio

from antiphon.errors import AntiphonError


class ForcedEnd:
    """Set once, by the cause that ends the conversation; `error` is sent to the client."""

    def __init__(self) -> None:
        self.error: AntiphonError | None = None
        self._set = asyncio.Event()

    def end(self, error: AntiphonError) -> None:
        """End the conversation; the first error counts."""
        if self.error is None:
            self.error = error
            self._set.set()

    async def wait(self) -> None:
        """Return when the conversation has to end."""
        await self._set.wait()
