"""A queue of messages waiting to be written to a stream. Both their number and their total size are
limited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from antiphon.errors import ResourceExhausted

Item = TypeVar("Item")

MAX_ITEMS = 16384


class Outbox(Generic[Item]):
    """A queue with a writer that never blocks and a reader that waits for items.

    `put_nowait` raises `ResourceExhausted` if the reader has fallen too far behind. `end` always
    succeeds, and the reader still receives all earlier items. Only items without a size count
    towards the limit on the number of items. An item that is larger than the size limit is accepted
    if no other bytes are waiting, because otherwise it could never be sent. No items are lost if
    the reader is cancelled.

    To read from many outboxes, pass an `on_item` callback to each of them and call `take_nowait`
    when it is called.
    """

    def __init__(self, limit_bytes: int, on_item: Callable[[], None] | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._on_item = on_item
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._ended = False
        self._reading: asyncio.Future[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the reader has received all items."""
        return not self._items

    def put_nowait(self, item: Item, size_bytes: int = 0) -> None:
        """Append an item. It is discarded if `end` has already been called."""
        if self._ended:
            return
        if size_bytes and self._bytes and self._bytes + size_bytes > self._limit_bytes:
            raise ResourceExhausted(
                f"{self._bytes} bytes are waiting for the client, and {size_bytes} more would "
                f"exceed the maximum of {self._limit_bytes} (sessions.outbox_bytes)"
            )
        if len(self._items) >= MAX_ITEMS:
            raise ResourceExhausted(
                f"{MAX_ITEMS} messages are waiting for the client, which is the maximum"
            )
        self._append(item, size_bytes)

    def put_latest(self, item: Item) -> None:
        """Append an item without a size. It replaces the newest item if both have the same type."""
        if not self._ended and self._items and type(self._items[-1][0]) is type(item):
            self._items[-1] = (item, 0)
        else:
            self.put_nowait(item)

    def end(self, last: Item) -> None:
        """Append the final item."""
        if not self._ended:
            self._ended = True
            self._append(last, 0)

    def _append(self, item: Item, size_bytes: int) -> None:
        self._items.append((item, size_bytes))
        self._bytes += size_bytes
        if self._on_item is not None:
            self._on_item()
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    def __aiter__(self) -> Outbox[Item]:
        return self

    async def __anext__(self) -> Item:
        while not self._items:
            if self._ended:
                raise StopAsyncIteration
            self._reading = asyncio.get_running_loop().create_future()
            await self._reading
        return self.take_nowait()

    @property
    def is_over(self) -> bool:
        """Whether the final item has been taken."""
        return self._ended and not self._items

    def take_nowait(self) -> Item:
        """Remove and return the next item. Raises `IndexError` if there is none."""
        item, size_bytes = self._items.popleft()
        self._bytes -= size_bytes
        return item
