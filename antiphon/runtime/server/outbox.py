"""What waits to be written to one stream, bounded in bytes and in number."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from antiphon.errors import ResourceExhausted

Item = TypeVar("Item")

MAX_ITEMS = 16384


class Outbox(Generic[Item]):
    """One writer that never waits, one reader that does.

    `put_nowait` raises `ResourceExhausted` when the reader is too far behind; `end`
    always succeeds, and lets the reader finish after what was put before it. Items
    without bytes are bounded by their number alone, and one that is larger than the
    bound may wait when no other bytes do: it could not go at all otherwise, and what
    says that it was the last must be able to follow it. Cancelling the reader loses
    nothing that it has not been given.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._ended = False
        self._reading: asyncio.Future[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the reader has been given everything."""
        return not self._items

    def put_nowait(self, item: Item, size_bytes: int = 0) -> None:
        """Append an item; after the end it is dropped."""
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

    def end(self, last: Item) -> None:
        """The last item; no more follow."""
        if not self._ended:
            self._ended = True
            self._append(last, 0)

    def _append(self, item: Item, size_bytes: int) -> None:
        self._items.append((item, size_bytes))
        self._bytes += size_bytes
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
        item, size_bytes = self._items.popleft()
        self._bytes -= size_bytes
        return item
