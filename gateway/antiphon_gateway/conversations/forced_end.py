"""The end of a conversation that neither its client nor the shutdown of the gateway has
requested.
"""

from __future__ import annotations

import asyncio

from antiphon.errors import AntiphonError


class ForcedEnd:
    """Ends a conversation. It is set only once, and `error` is sent to the client."""

    def __init__(self) -> None:
        self.error: AntiphonError | None = None
        self._set = asyncio.Event()

    def end(self, error: AntiphonError) -> None:
        """End the conversation. If this is called several times, the first error is used."""
        if self.error is None:
            self.error = error
            self._set.set()

    async def wait(self) -> None:
        """Return when the conversation has to end."""
        await self._set.wait()
