"""Receive buffers that are reused once the last view of them has been deleted.

Page faults in a large new buffer cost about 0.5 ms per MiB, which exceeds the cost of copying the
data into it. The most recently freed buffer is reused first. The pool keeps only a limited amount
of memory.
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
    """A thread-safe pool of buffers that are aligned for blobs."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._free: deque[npt.NDArray[Any]] = deque()

    def take(self, size: int) -> memoryview:
        """Return a writable buffer of `size` bytes. It goes back to the pool when the last view of
        it is deleted.
        """
        room = self._suitable(size)
        start = -room.ctypes.data % ALIGNMENT
        # This is a separate view, which is deleted along with the last view of the buffer.
        owner = room[start : start + size]
        weakref.finalize(owner, self._give_back, room).atexit = False
        return owner.data

    def _suitable(self, size: int) -> npt.NDArray[Any]:
        """Return a free buffer of one to two times the required size, or a new buffer if there is
        none.
        """
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
