"""A bounded mailbox with several writers and one reader. If there is a failure, the reader receives
it before any items.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class EventMailbox(Generic[Item]):
    """Holds up to `limit` items. If the mailbox is full, writers wait until there is room.

    The reader receives a failure before any items that are still in the mailbox. Writers that are
    waiting at that point continue, but their items are discarded.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[Item] = deque()
        self.failure: Exception | None = None
        """The first exception passed to `fail`, or None."""
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()

    async def put(self, item: Item) -> None:
        """Add an item, waiting for room if necessary. If this is cancelled, the item
        isn't added.
        """
        while len(self._items) >= self._limit and self.failure is None:
            self._writable.clear()
            await self._writable.wait()
        if self.failure is None:
            self._items.append(item)
            self._readable.set()

    def offer(self, item: Item) -> bool:
        """Add an item if there is room and return whether it was added."""
        fits = len(self._items) < self._limit and self.failure is None
        if fits:
            self._items.append(item)
            self._readable.set()
        return fits

    async def get(self) -> Item:
        """Remove and return the oldest item, waiting for one if necessary. Raises the failure, if
        there is one. If this is cancelled, no item is removed.
        """
        while not self._items and self.failure is None:
            self._readable.clear()
            await self._readable.wait()
        if self.failure is not None:
            raise self.failure
        self._writable.set()
        return self._items.popleft()

    def fail(self, failure: Exception) -> None:
        """Set the failure. Only the first call has an effect."""
        if self.failure is None:
            self.failure = failure
            self._items.clear()
            self._readable.set()
            self._writable.set()
