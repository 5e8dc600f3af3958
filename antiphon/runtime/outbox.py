"""What waits to be written to one stream, bounded in bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from antiphon.errors import ResourceExhausted

Item = TypeVar("Item")


class Outbox(Generic[Item]):
    """One writer that never waits, one reader that does.

    `put_nowait` raises `ResourceExhausted` when the reader is too far behind;
    `end` lets the reader finish after what was put before it. Cancelling the
    reader loses nothing that it has not been given.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._ended = False
        self._changed = asyncio.Event()

    def put_nowait(self, item: Item, size_bytes: int = 0) -> None:
        """Append an item."""
        if self._bytes + size_bytes > self._limit_bytes and self._items:
            raise ResourceExhausted(
                f"the reader is {self._bytes} bytes behind, at most {self._limit_bytes} may wait"
            )
        self._items.append((item, size_bytes))
        self._bytes += size_bytes
        self._changed.set()

    def end(self) -> None:
        """No more items follow."""
        self._ended = True
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[Item]:
        while True:
            while self._items:
                item, size_bytes = self._items.popleft()
                self._bytes -= size_bytes
                yield item
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()
