"""Memory that is shared by one producer and one consumer. It is an anonymous file that is split
into slots.

Invariants:

* The file has no name (memfd), so it disappears with the last process that maps it.
* The file is sealed so that it cannot shrink, and the pages of a slot are reserved
  (posix_fallocate) before the slot is written, so no access can raise SIGBUS. If there is not
  enough memory, `place` reports an error.
* When a slot is used for the first time, each process reserves and maps all of its pages at once.
  Later uses cause no page faults.
* A slot begins with the generation of its last placement, which the consumer checks.
* The head of the slab contains a mark for each unit. When the last view of a slot is deleted, the
  consumer writes the slot's generation to its mark. The producer reads the marks when it needs a
  slot. Returning a slot therefore doesn't require a message and doesn't wake a thread. The next
  payload uses the slot whose cache lines are still warm.
* The consumer can only write to the head.
* The consumer never unmaps the memory while a view exists. Views hold a reference to the mapping,
  which is dropped instead of closed. The producer has no views and unmaps immediately.
"""

from __future__ import annotations

import enum
import errno
import mmap
import os
import secrets
import struct
import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from antiphon.transport.anonymous_file import check_sealed, create_sealed
from antiphon.transport.payload.transport import MAX_PAYLOAD_BYTES, NotPlaced, PayloadLost
from antiphon.transport.slot_allocator import SlotAllocator
from antiphon.wire.blob import ALIGNMENT, Encoding

UNIT_BYTES = 64 << 10
NONCE_BYTES = 32

_SLOT = struct.Struct("<QQ")
_SLOT_BYTES = ALIGNMENT
_MARK_BYTES = 8
# The mark of a unit at which no used slot begins. Generations never reach this value.
_NO_SLOT = (1 << 64) - 1
# This is defined in linux/mman.h, but not in Python 3.11.
_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23

Reserve = Callable[[int, int, int], None]


class SlabFallback(enum.StrEnum):
    """The possible reasons for not placing a payload in the slab."""

    SLAB_FULL = "slab_full"
    TOO_LARGE = "too_large"
    NO_MEMORY = "no_memory"
    SLOT_LOST = "slot_lost"


class _Touched:
    """Tracks the units of a mapping that have been populated."""

    def __init__(self, memory: mmap.mmap, advice: int) -> None:
        self._memory = memory
        self._advice = advice
        self._units = bytearray(len(memory) // UNIT_BYTES)

    def is_new(self, offset: int, size: int) -> bool:
        """Return whether the range contains any units that haven't been populated yet."""
        return self._units.find(0, *_units(offset, size)) >= 0

    def touch(self, offset: int, size: int) -> None:
        """Populate all pages in the range at once. Otherwise, each of them would cause a page
        fault.
        """
        first, end = _units(offset, size)
        try:
            self._memory.madvise(self._advice, first * UNIT_BYTES, (end - first) * UNIT_BYTES)
        except OSError as error:
            # Before Linux 5.14, this fails with EINVAL, and each page causes a page fault of its
            # own.
            if error.errno != errno.EINVAL:
                raise
        self._units[first:end] = b"\1" * (end - first)


class Slab:
    """The producer's side. Raises `OSError` if anonymous files aren't available."""

    def __init__(self, capacity: int, *, reserve: Reserve | None = None) -> None:
        self.size_bytes = capacity
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._reserve = reserve or os.posix_fallocate
        self._slots = SlotAllocator(capacity, UNIT_BYTES)
        self._offsets: dict[int, int] = {}
        self._generation = 0
        self.fd = create_sealed("antiphon-slab", capacity)
        try:
            self._memory = mmap.mmap(self.fd, capacity)
            self._reserve(self.fd, 0, _head_bytes(capacity))
        except OSError:
            os.close(self.fd)
            raise
        self._touched = _Touched(self._memory, _MADV_POPULATE_WRITE)
        # The first block contains the nonce and the marks, so it is never used as a slot.
        self._slots.take(_head_bytes(capacity))
        self._memory[:NONCE_BYTES] = self.nonce
        self._marks = _marks(self._memory, capacity)
        self._awaited = np.full(len(self._marks), _NO_SLOT, np.uint64)

    def place(self, encoding: Encoding) -> tuple[int, int]:
        """Encode into a free slot and return the slot's offset and generation. Raises `NotPlaced`
        if no slot is free.
        """
        size = _SLOT_BYTES + encoding.size_bytes
        if size > self.size_bytes // 2:
            raise NotPlaced(SlabFallback.TOO_LARGE)
        self._collect()
        offset = self._slots.take(size)
        if offset is None:
            raise NotPlaced(SlabFallback.SLAB_FULL)
        try:
            self._prepare(offset, size)
        except OSError as error:
            self._slots.free(offset)
            raise NotPlaced(SlabFallback.NO_MEMORY, str(error)) from error
        self._generation += 1
        self._offsets[self._generation] = offset
        self._awaited[offset // UNIT_BYTES] = self._generation
        _SLOT.pack_into(self._memory, offset, self._generation, encoding.size_bytes)
        with memoryview(self._memory) as whole, whole[offset + _SLOT_BYTES : offset + size] as slot:
            encoding.write_into(slot)
        return offset, self._generation

    def release(self, generation: int) -> None:
        """Free a slot that the consumer has never looked at. Unknown generations are ignored."""
        offset = self._offsets.pop(generation, None)
        if offset is not None:
            self._awaited[offset // UNIT_BYTES] = _NO_SLOT
            self._slots.free(offset)

    @property
    def used(self) -> int:
        """The number of slots that the consumer hasn't returned yet."""
        self._collect()
        return len(self._offsets)

    def close(self) -> None:
        """Close the file and unmap the memory. The memory itself exists for as long as the consumer
        maps it.
        """
        os.close(self.fd)
        # Drop this view, because a mapping with views can't be closed.
        self._marks = np.empty(0, np.uint64)
        self._memory.close()

    def _collect(self) -> None:
        """Free the slots that the consumer has marked."""
        if self._offsets:
            for unit in np.flatnonzero(self._marks == self._awaited):
                self.release(int(self._awaited[unit]))

    def _prepare(self, offset: int, size: int) -> None:
        if self._touched.is_new(offset, size):
            first, end = _units(offset, size)
            self._reserve(self.fd, first * UNIT_BYTES, (end - first) * UNIT_BYTES)
            self._touched.touch(offset, size)


class AttachedSlab:
    """The consumer's side of a slab. It takes ownership of the file descriptor.

    When the last view of a slot is deleted, on any thread, the slot is marked as free. Raises
    `OSError`, or `ValueError` if the file isn't a slab of the given size.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        try:
            check_sealed(fd, size_bytes)
            if size_bytes % UNIT_BYTES or size_bytes <= _head_bytes(size_bytes):
                raise ValueError(f"the memory of {size_bytes} bytes is not a slab")
            self._memory = mmap.mmap(fd, size_bytes, prot=mmap.PROT_READ)
            self._marks = _marks(mmap.mmap(fd, _head_bytes(size_bytes)), size_bytes)
        finally:
            os.close(fd)
        self._touched = _Touched(self._memory, _MADV_POPULATE_READ)

    def nonce(self) -> bytes:
        """Return the nonce, which proves that this process can read the producer's memory."""
        return self._memory[:NONCE_BYTES]

    def view(self, offset: int, generation: int, size: int) -> memoryview:
        """Return a read-only view of the blob in a slot. Raises `PayloadLost` if the slot no longer
        contains the blob.
        """
        end = offset + _SLOT_BYTES + size
        if offset % UNIT_BYTES or size > MAX_PAYLOAD_BYTES or end > len(self._memory):
            raise PayloadLost(SlabFallback.SLOT_LOST, f"no slot of {size} bytes at {offset}")
        if self._touched.is_new(offset, _SLOT_BYTES + size):
            self._touched.touch(offset, _SLOT_BYTES + size)
        if _SLOT.unpack_from(self._memory, offset) != (generation, size):
            raise PayloadLost(SlabFallback.SLOT_LOST, f"generation {generation} is gone")
        owner = np.frombuffer(self._memory, np.uint8, size, offset + _SLOT_BYTES)
        # Every view of the blob refers to this array, so the array is deleted together with the
        # last view.
        mark = weakref.finalize(owner, _mark, self._marks, offset // UNIT_BYTES, generation)
        mark.atexit = False
        return owner.data


def _mark(marks: npt.NDArray[np.uint64], unit: int, generation: int) -> None:
    """Mark a slot as free. This is a single aligned store, so a reader sees either the old or the
    new value.
    """
    marks[unit] = generation


def _marks(memory: mmap.mmap, capacity: int) -> npt.NDArray[np.uint64]:
    """Return the marks. There is one word per unit, which is zero until a slot that begins at this
    unit is freed.
    """
    return np.frombuffer(memory, np.uint64, capacity // UNIT_BYTES, ALIGNMENT)


def _head_bytes(capacity: int) -> int:
    """Return the size of the nonce and the marks, rounded up to whole units."""
    size = ALIGNMENT + capacity // UNIT_BYTES * _MARK_BYTES
    return -(-size // UNIT_BYTES) * UNIT_BYTES


def _units(offset: int, size: int) -> tuple[int, int]:
    """Return the first unit in a range and the unit after the last one."""
    return offset // UNIT_BYTES, -(-(offset + size) // UNIT_BYTES)
