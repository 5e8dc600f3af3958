from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_services.lm.slots import MIN_REUSED, Claim, Content, Kept, Slots, shared_length

LONG = 2 * MIN_REUSED


def _content(*ids: int) -> Content:
    return np.asarray(ids, dtype=np.int64)


def _same(first: Claim | None, slot: int, reused: int, source: int | None) -> bool:
    return first is not None and (first.slot, first.reused, first.source) == (slot, reused, source)


def test_claim_takes_the_slot_over_when_the_prompt_goes_on_from_it() -> None:
    slots = Slots(2)
    first = slots.claim(_content(*range(LONG)))
    assert _same(first, 0, 0, None)
    slots.keep(0, Kept(_content(*range(LONG + 5)), LONG))
    claim = slots.claim(_content(*range(LONG + 9)))
    assert _same(claim, 0, LONG + 5, None)


def test_claim_copies_when_only_a_beginning_of_the_prompt_is_shared() -> None:
    slots = Slots(2)
    slots.claim(_content(*range(LONG)))
    slots.keep(0, Kept(_content(*range(LONG)), LONG))
    other = _content(*range(MIN_REUSED), *[7] * LONG)
    claim = slots.claim(other)
    assert _same(claim, 1, MIN_REUSED, 0)
    assert _same(slots.claim(_content(*range(LONG + 1))), 0, LONG, None)


def test_claim_reuses_nothing_when_the_beginning_is_short() -> None:
    slots = Slots(2)
    slots.claim(_content(*range(LONG)))
    slots.keep(0, Kept(_content(*range(LONG)), LONG))
    assert _same(slots.claim(_content(*range(MIN_REUSED - 1), 7, 7)), 1, 0, None)


def test_claim_leaves_the_last_position_when_the_prompt_was_seen_whole() -> None:
    slots = Slots(1)
    slots.claim(_content(*range(LONG)))
    slots.keep(0, Kept(_content(*range(LONG + 3)), LONG))
    assert _same(slots.claim(_content(*range(LONG))), 0, LONG - 1, None)


def test_claim_evicts_the_least_recently_used_when_no_slot_is_free() -> None:
    slots = Slots(2)
    contents = [_content(*range(start, start + LONG)) for start in (0, 100, 200)]
    for slot in (0, 1):
        assert _same(slots.claim(contents[slot]), slot, 0, None)
    for slot in (1, 0):
        slots.keep(slot, Kept(contents[slot], LONG))
    assert _same(slots.claim(contents[2]), 1, 0, None)
    assert _same(slots.claim(np.append(contents[0], 5)), 0, LONG, None)


def test_claim_is_none_when_all_slots_are_taken() -> None:
    slots = Slots(1)
    assert slots.claim(_content(1)) is not None
    assert slots.claim(_content(1)) is None
    slots.free(0)
    assert slots.claim(_content(1)) is not None


def test_slots_are_given_lowest_first_when_some_come_back() -> None:
    slots = Slots(4)
    assert [slots.take() for _ in range(4)] == [0, 1, 2, 3]
    assert slots.take() is None
    slots.free(2)
    slots.free(0)
    assert [slots.take(), slots.take()] == [0, 2]


def test_forget_leaves_nothing_to_reuse() -> None:
    slots = Slots(1)
    slots.claim(_content(*range(LONG)))
    slots.keep(0, Kept(_content(*range(LONG)), LONG))
    slots.forget()
    assert _same(slots.claim(_content(*range(LONG + 1))), 0, 0, None)


@given(st.data())
def test_slots_never_go_to_two_and_reuse_is_what_wasKept(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    slots = Slots(count)
    running: dict[int, Content] = {}
    held: dict[int, Content] = {}
    bodies = [_content(*[n] * MIN_REUSED) for n in range(3)]
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["claim", "keep", "free"]))
        if action == "claim":
            parts = data.draw(st.lists(st.sampled_from(bodies), min_size=1, max_size=4))
            content = np.concatenate(parts)
            claim = slots.claim(content)
            assert (claim is None) == (len(running) == count)
            if claim is not None:
                assert claim.slot not in running
                origin = held.get(claim.slot if claim.source is None else claim.source)
                if claim.reused:
                    assert origin is not None
                    assert origin[: claim.reused].tolist() == content[: claim.reused].tolist()
                assert claim.reused < len(content)
                held.pop(claim.slot, None)
                running[claim.slot] = content
        elif running:
            slot = data.draw(st.sampled_from(sorted(running)))
            content = running.pop(slot)
            if action == "keep":
                held[slot] = np.append(content, data.draw(st.integers(0, 2)))
                slots.keep(slot, Kept(held[slot], len(content)))
            else:
                slots.free(slot)


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [((1, 2, 3), (1, 2, 3), 3), ((1, 2), (1, 2, 3), 2), ((1, 5), (1, 2), 1), ((), (1,), 0)],
)
def test_shared_length_counts_equal_positions(
    first: tuple[int, ...], second: tuple[int, ...], length: int
) -> None:
    assert shared_length(_content(*first), _content(*second)) == length
