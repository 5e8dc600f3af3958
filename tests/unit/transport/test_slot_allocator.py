from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.transport.slot_allocator import SlotAllocator

CAPACITY, SMALLEST = 1 << 10, 16


@given(st.lists(st.tuples(st.booleans(), st.integers(1, CAPACITY)), max_size=60))
@settings(max_examples=500)
def test_slots_never_overlap_and_all_come_back(moves: list[tuple[bool, int]]) -> None:
    slots = SlotAllocator(CAPACITY, SMALLEST)
    taken: dict[int, int] = {}
    for take, size in moves:
        if take:
            offset = slots.take(size)
            if offset is not None:
                assert offset >= 0
                assert offset + size <= CAPACITY
                for other, length in taken.items():
                    assert offset + size <= other or other + length <= offset
                taken[offset] = size
        elif taken:
            offset = sorted(taken)[size % len(taken)]
            del taken[offset]
            slots.free(offset)
        assert slots.taken == len(taken)
    for offset in taken:
        slots.free(offset)
    assert slots.take(CAPACITY) == 0


def test_slot_that_was_freed_last_is_taken_first() -> None:
    slots = SlotAllocator(CAPACITY, SMALLEST)
    offsets = [slots.take(SMALLEST) for _ in range(6)]
    assert None not in offsets
    for offset in (offsets[1], offsets[4]):
        assert offset is not None
        slots.free(offset)
    assert slots.take(SMALLEST) == offsets[4]
    assert slots.take(SMALLEST) == offsets[1]


def test_slot_that_is_not_taken_cannot_be_freed() -> None:
    slots = SlotAllocator(CAPACITY, SMALLEST)
    with pytest.raises(KeyError):
        slots.free(0)


def test_slots_need_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="power of two"):
        SlotAllocator(48, 16)
