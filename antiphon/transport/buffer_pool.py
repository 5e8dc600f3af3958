"""Buffers for payloads that are received, used again when their last view has died.

A fresh buffer of many MiB is paid for page by page, about 0.5 ms each MiB, more
than the copy into it. The buffer freed last is taken first. What is kept is bounded.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from antiphon.wire.blob import ALIGNMENT

KEPT_BYTES = 64 << 20
_GRAIN = 1 << 20


class BufferPool:
    """Buffers that start where a blob wants to start. May be used on any thread."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._free: deque[npt.NDArray[Any]] = deque()

    def take(self, size: int) -> memoryview:
        """A writable buffer of `size` bytes; it comes back when nobody views it."""
        room = self._suitable(size)
        start = -room.ctypes.data % ALIGNMENT
        # A view of its own: it dies with the last view of the buffer.
        owner = room[start : start + size]
        weakref.finalize(owner, self._give_back, room).atexit = False
        return owner.data

    def _suitable(self, size: int) -> npt.NDArray[Any]:
        """A kept buffer that is large enough but not wasteful, or a new one."""
        wanted = -(-(size + ALIGNMENT) // _GRAIN) * _GRAIN
        for _ in range(len(self._free)):
            try:
                room = self._free.pop()
            except IndexError:
                break
            if wanted <= room.nbytes <= 2 * wanted:
                return room
            self._free.appendleft(room)
        return np.empty(wanted, np.uint8)

    def _give_back(self, room: npt.NDArray[Any]) -> None:
        kept = sum(each.nbytes for each in tuple(self._free))
        if kept + room.nbytes <= self._kept_bytes:
            self._free.append(room)
