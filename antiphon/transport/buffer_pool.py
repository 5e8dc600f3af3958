"""Receive buffers that are reused after their last view is gone.

The page faults of a fresh buffer of many MiB cost about 0.5 ms per MiB, more than the copy into it.
The most recently freed buffer is reused first. The memory kept is bounded.
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
    """A pool of buffers aligned for blobs. Thread-safe."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._free: deque[npt.NDArray[Any]] = deque()

    def take(self, size: int) -> memoryview:
        """Return a writable buffer of `size` bytes. It returns to the pool with its last view."""
        room = self._suitable(size)
        start = -room.ctypes.data % ALIGNMENT
        # A separate view, which is collected with the last view of the buffer.
        owner = room[start : start + size]
        weakref.finalize(owner, self._give_back, room).atexit = False
        return owner.data

    def _suitable(self, size: int) -> npt.NDArray[Any]:
        """Return a kept buffer of one to two times the size needed, or a new one."""
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
