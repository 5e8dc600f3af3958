"""Slots that those who wait take in turn, whatever each of them has waiting."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Waiter:
    """One who waits: what is to be worked on has so many bytes."""

    size_bytes: int
    given: asyncio.Future[None]


class FairSlots:
    """So many slots. Those who wait are served round-robin by key.

    Of one key the smallest and the oldest take turns: so small work passes large work, and large
    work does not wait for ever.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: OrderedDict[str, list[_Waiter]] = OrderedDict()
        self._oldest_next = False

    async def take(self, key: str, size_bytes: int) -> None:
        """Return when the caller has a slot. Cancelling gives the place in the queue up."""
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
                # It was given a slot at the same moment.
                self.free()
            raise

    def free(self) -> None:
        """Give a slot back, to the next who waits."""
        while self._waiting:
            key, places = self._waiting.popitem(last=False)
            smallest = min(places, key=lambda each: each.size_bytes)
            place = places[0] if self._oldest_next else smallest
            places.remove(place)
            if places:
                # Behind the other keys.
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
