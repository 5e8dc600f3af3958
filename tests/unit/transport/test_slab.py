from __future__ import annotations

import errno
import gc
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from antiphon.transport.payload.slab import UNIT_BYTES, AttachedSlab, Slab, SlabFallback
from antiphon.transport.payload.transport import NotPlaced, PayloadLost
from antiphon.wire import blob
from antiphon.wire.blob import Encoding

CAPACITY = 16 * UNIT_BYTES
ROW = np.arange(50_000, dtype=np.uint16)


@pytest.fixture
def slab() -> Iterator[Slab]:
    slab = Slab(CAPACITY)
    yield slab
    slab.close()


def attach(slab: Slab) -> AttachedSlab:
    return AttachedSlab(os.dup(slab.fd), slab.size_bytes)


def place(slab: Slab, row: np.ndarray = ROW) -> tuple[int, int, int]:
    encoding = Encoding({"row": row})
    offset, generation = slab.place(encoding)
    return offset, generation, encoding.size_bytes


def test_consumer_reads_the_nonce_and_views_without_a_copy(slab: Slab) -> None:
    attached = attach(slab)
    assert attached.nonce() == slab.nonce
    offset, generation, size = place(slab)
    row = blob.decode(attached.view(offset, generation, size))["row"]
    np.testing.assert_array_equal(row, ROW)
    assert not row.flags.writeable
    assert row.ctypes.data % blob.ALIGNMENT == 0
    # What the producer writes later into the same memory shows: it is a view.
    slab.release(generation)
    place(slab, ROW[::-1])
    np.testing.assert_array_equal(row, ROW[::-1])


def test_slot_is_given_back_when_its_last_view_dies_on_any_thread(slab: Slab) -> None:
    attached = attach(slab)
    offset, generation, size = place(slab)
    tensors = blob.decode(attached.view(offset, generation, size))
    part = tensors["row"][10:20]
    tensors.clear()
    gc.collect()
    assert slab.used == 1
    holder = [part]
    del part
    thread = threading.Thread(target=holder.clear)
    thread.start()
    thread.join()
    assert slab.used == 0
    assert place(slab)[0] == offset


def test_view_outlives_both_ends(slab: Slab) -> None:
    own = Slab(CAPACITY)
    attached = attach(own)
    offset, generation, size = place(own)
    row = blob.decode(attached.view(offset, generation, size))["row"]
    own.close()
    del own, attached
    gc.collect()
    np.testing.assert_array_equal(row, ROW)


def test_view_is_lost_when_the_generation_is_another(slab: Slab) -> None:
    attached = attach(slab)
    offset, generation, size = place(slab)
    slab.release(generation)
    assert place(slab)[0] == offset
    with pytest.raises(PayloadLost) as caught:
        attached.view(offset, generation, size)
    assert caught.value.reason is SlabFallback.SLOT_LOST


@pytest.mark.parametrize(
    ("offset", "size"), [(1, 10), (CAPACITY, 10), (UNIT_BYTES, CAPACITY), (UNIT_BYTES, 1 << 60)]
)
def test_view_is_lost_when_the_descriptor_lies(slab: Slab, offset: int, size: int) -> None:
    attached = attach(slab)
    with pytest.raises(PayloadLost):
        attached.view(offset, 1, size)


def test_placing_is_refused_when_the_slab_is_full_and_goes_on_when_a_slot_is_free(
    slab: Slab,
) -> None:
    placed = [place(slab) for _ in range(7)]
    with pytest.raises(NotPlaced) as caught:
        place(slab)
    assert caught.value.reason is SlabFallback.SLAB_FULL
    slab.release(placed[3][1])
    assert place(slab)[0] == placed[3][0]
    slab.release(999)
    assert slab.used == 7


def test_placing_is_refused_when_the_payload_is_too_large(slab: Slab) -> None:
    with pytest.raises(NotPlaced) as caught:
        place(slab, np.zeros(CAPACITY // 2, np.uint8))
    assert caught.value.reason is SlabFallback.TOO_LARGE


def test_placing_is_refused_when_memory_is_short_and_goes_on_when_there_is_some() -> None:
    short = False

    def reserve(fd: int, offset: int, size: int) -> None:
        if short:
            raise OSError(errno.ENOSPC, "no space left")
        os.posix_fallocate(fd, offset, size)

    slab = Slab(CAPACITY, reserve=reserve)
    short = True
    with pytest.raises(NotPlaced) as caught:
        place(slab)
    assert caught.value.reason is SlabFallback.NO_MEMORY
    for _ in range(20):
        with pytest.raises(NotPlaced) as caught:
            place(slab)
        assert caught.value.reason is SlabFallback.NO_MEMORY
    short = False
    # As many as ever: what could not be had has taken no slot.
    for _ in range(7):
        place(slab)
    slab.close()


def test_nothing_is_reserved_before_it_is_needed(slab: Slab) -> None:
    assert os.fstat(slab.fd).st_blocks * 512 == UNIT_BYTES
    place(slab)
    assert os.fstat(slab.fd).st_blocks * 512 <= 4 * UNIT_BYTES


def test_memory_is_refused_when_it_could_shrink_under_the_reader() -> None:
    fd = os.memfd_create("test-unsealed")
    os.ftruncate(fd, CAPACITY)
    with pytest.raises((ValueError, OSError)):
        AttachedSlab(fd, CAPACITY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_memory_is_refused_when_its_size_is_another(slab: Slab) -> None:
    with pytest.raises(ValueError, match="large"):
        AttachedSlab(os.dup(slab.fd), CAPACITY * 2)


def test_slab_cannot_shrink(slab: Slab) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(slab.fd, UNIT_BYTES)
