"""Distributes slots fairly among waiting callers, regardless of how much work each of them has."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Waiter:
    """A waiter and the size of its work in bytes."""

    size_bytes: int
    given: asyncio.Future[None]


class FairSlots:
    """A fixed number of slots, which keys use in turn.

    Each key's turns alternate between its smallest task and its oldest task. This way, small tasks
    can overtake large ones without starving them.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: OrderedDict[str, list[_Waiter]] = OrderedDict()
        self._oldest_next = False

    async def take(self, key: str, size_bytes: int) -> None:
        """Wait for a free slot and take it. If this is cancelled, the caller loses its place in the
        queue.
        """
        if self._free:
            self._free -= 1
            return
        place = _Waiter(size_bytes, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(key, []).append(place)
        try:
            await place.given
        except asyncio.CancelledError:
            if place.given.cancelled():
                self._forget(key, place)
            else:
                # The caller was given a slot at the same moment.
                self.free()
            raise

    def free(self) -> None:
        """Release a slot and give it to the next waiter."""
        while self._waiting:
            key, places = self._waiting.popitem(last=False)
            smallest = min(places, key=lambda each: each.size_bytes)
            place = places[0] if self._oldest_next else smallest
            places.remove(place)
            if places:
                # Move the key to the end of the line.
                self._waiting[key] = places
            if not place.given.cancelled():
                self._oldest_next = not self._oldest_next
                place.given.set_result(None)
                return
        self._free += 1

    def _forget(self, key: str, place: _Waiter) -> None:
        places = self._waiting.get(key, [])
        if place in places:
            places.remove(place)
            if not places:
                del self._waiting[key]
