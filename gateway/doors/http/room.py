"""Bytes that clients make the gateway hold, bounded over all of them together.

Whoever needs room that is not there gets that of the client that has let its own lie for
longest: a body of which nothing more comes, an answer of which nothing is taken. So clients
that do nothing cannot keep the room from those that do.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from antiphon.errors import ResourceExhausted

SILENT_S = 1.0
"""Who has moved nothing for so long gives way."""


class NoRoom(ResourceExhausted):
    """Clients hold as much as they may together."""


class Room:
    """So many bytes, shared by those who hold some."""

    def __init__(
        self,
        limit_bytes: int,
        what: str,
        setting: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._limit_bytes = limit_bytes
        self._full = f"{what} take all of {setting} ({limit_bytes} bytes)"
        self._holdings: OrderedDict[RoomShare, None] = OrderedDict()
        self.held_bytes = 0

    @contextmanager
    def hold(self, give_way: Callable[[], None]) -> Iterator[RoomShare]:
        """A holding of nothing yet. `give_way` is called when others need its room."""
        holding = RoomShare(self, give_way)
        self._holdings[holding] = None
        try:
            yield holding
        finally:
            holding.close()

    def clear(self) -> None:
        """Have everyone give way who waits for a client."""
        for holding in list(self._holdings):
            if holding.moved_at < math.inf:
                holding.evict()

    def grow(self, size: int) -> None:
        """Take that many bytes more. Raises `NoRoom` when they are not there."""
        silent_since = self.clock() - SILENT_S
        for holding in list(self._holdings):
            if self.held_bytes + size <= self._limit_bytes:
                break
            if holding.moved_at < silent_since:
                holding.evict()
        if self.held_bytes + size > self._limit_bytes:
            raise NoRoom(self._full, retry_after_s=SILENT_S)
        self.held_bytes += size

    def touch(self, holding: RoomShare) -> None:
        """Put it behind those who have moved less lately."""
        self._holdings.move_to_end(holding)

    def forget(self, holding: RoomShare) -> None:
        """Know it no more; once is enough."""
        self._holdings.pop(holding, None)


class RoomShare:
    """One client's part of a room."""

    def __init__(self, room: Room, give_way: Callable[[], None]) -> None:
        self._room = room
        self._give_way = give_way
        self._size = 0
        self.gave_way = False
        self.moved_at = self._room.clock()

    def moved(self, size: int) -> None:
        """Its client has sent or taken something; now it holds `size` bytes.

        Raises `NoRoom` when there are not so many.
        """
        if self.gave_way:
            raise gave_way()
        self.moved_at = self._room.clock()
        self._room.touch(self)
        self._room.grow(size - self._size)
        self._size = size

    def keep(self) -> None:
        """Its client has done its part: it gives way no more."""
        self.moved_at = math.inf

    def evict(self) -> None:
        """Let go of the room and tell whoever waits for the client."""
        self.close()
        self.gave_way = True
        self._give_way()

    def close(self) -> None:
        """Hold nothing from now on; once is enough."""
        self._room.held_bytes -= self._size
        self._size = 0
        self._room.forget(self)


def gave_way() -> NoRoom:
    """What a client is told that had to give way."""
    return NoRoom("it stood still and gave way to others; send it again", retry_after_s=SILENT_S)
