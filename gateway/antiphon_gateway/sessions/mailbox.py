"""A bounded mailbox with many writers and one reader, which a failure overtakes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class EventMailbox(Generic[Item]):
    """Holds at most `limit` items; writers wait for the reader to take one.

    A failure is seen at once: the reader gets it before anything that still
    lies here, and waiting writers go on with their item dropped.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[Item] = deque()
        self._failure: Exception | None = None
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()

    @property
    def failure(self) -> Exception | None:
        """What `fail` was called with first; None when it was not."""
        return self._failure

    async def put(self, item: Item) -> None:
        """Add an item as soon as there is room. Cancelling adds nothing."""
        while len(self._items) >= self._limit and self._failure is None:
            self._writable.clear()
            await self._writable.wait()
        if self._failure is None:
            self._items.append(item)
            self._readable.set()

    def offer(self, item: Item) -> bool:
        """Add an item if there is room; whether there was."""
        fits = len(self._items) < self._limit and self._failure is None
        if fits:
            self._items.append(item)
            self._readable.set()
        return fits

    async def get(self) -> Item:
        """Take the oldest item, waiting for one. Raises the failure. Cancelling takes nothing."""
        while not self._items and self._failure is None:
            self._readable.clear()
            await self._readable.wait()
        if self._failure is not None:
            raise self._failure
        self._writable.set()
        return self._items.popleft()

    def fail(self, failure: Exception) -> None:
        """End with a failure; only the first counts."""
        if self._failure is None:
            self._failure = failure
            self._items.clear()
            self._readable.set()
            self._writable.set()
