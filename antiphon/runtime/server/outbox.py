"""Messages waiting to be written to one stream, bounded in bytes and number."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from antiphon.errors import ResourceExhausted

Item = TypeVar("Item")

MAX_ITEMS = 16384


class Outbox(Generic[Item]):
    """A queue with a writer that never blocks and a reader that does.

    `put_nowait` raises `ResourceExhausted` when the reader is too far behind. `end` always
    succeeds, and the reader first receives what was put before it. Items without bytes are bounded
    by number alone. An item larger than the bound is accepted if no other bytes wait; otherwise it
    could never be sent. Cancelling the reader loses no item.

    A reader of many outboxes takes items with `take_nowait` after `on_item` was called.
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
        """Whether the reader has received everything."""
        return not self._items

    def put_nowait(self, item: Item, size_bytes: int = 0) -> None:
        """Append an item. After `end` it is dropped."""
        if self._ended:
            return
        if size_bytes and self._bytes and self._bytes + size_bytes > self._limit_bytes:
            raise ResourceExhausted(
                f"the reader is {self._bytes} bytes behind and {size_bytes} more came: at most "
                f"{self._limit_bytes} may wait (outbox_bytes)"
            )
        if len(self._items) >= MAX_ITEMS:
            raise ResourceExhausted(f"the reader is {MAX_ITEMS} messages behind, no more may wait")
        self._append(item, size_bytes)

    def put_latest(self, item: Item) -> None:
        """Append an item without bytes, or replace the newest one if it is of the same type."""
        if not self._ended and self._items and type(self._items[-1][0]) is type(item):
            self._items[-1] = (item, 0)
        else:
            self.put_nowait(item)

    def end(self, last: Item) -> None:
        """Append the last item."""
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
        """Whether the last item has been taken."""
        return self._ended and not self._items

    def take_nowait(self) -> Item:
        """The next item. Raises `IndexError` if there is none."""
        item, size_bytes = self._items.popleft()
        self._bytes -= size_bytes
        return item
