from __future__ import annotations

import numpy as np

from antiphon.transport.buffer_pool import BufferPool
from antiphon.wire.blob import ALIGNMENT

MIB = 1 << 20


def address(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def test_buffer_is_used_again_only_when_its_last_view_has_died() -> None:
    pool = BufferPool()
    first = pool.take(3 * MIB)
    view = np.frombuffer(first, np.uint8)[5:]
    at = address(first)
    del first
    second = pool.take(3 * MIB)
    assert address(second) != at
    del view
    assert address(pool.take(3 * MIB)) == at


def test_buffer_is_aligned_and_as_large_as_asked() -> None:
    pool = BufferPool()
    for size in (1, 100, MIB, MIB + 1, 5 * MIB):
        buffer = pool.take(size)
        assert len(buffer) == size
        assert address(buffer) % ALIGNMENT == 0
        buffer[-1] = 1


def test_pool_keeps_no_more_than_its_bound_and_wastes_no_large_buffer() -> None:
    pool = BufferPool(kept_bytes=8 * MIB)
    large = pool.take(7 * MIB)
    at = address(large)
    del large
    small = pool.take(MIB)
    assert address(small) != at
    del small
    huge = pool.take(20 * MIB)
    del huge
    assert address(pool.take(7 * MIB)) == at
