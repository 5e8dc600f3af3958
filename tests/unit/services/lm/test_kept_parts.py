"""Parts of prompts that stay in slots."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon_services.lm.kept_parts import KeptParts, part_name
from antiphon_services.lm.slots import Slots


def test_session_gets_its_own_slot_and_others_those_that_are_nobodys() -> None:
    kept, everything = KeptParts(), {0, 1, 2}
    for session, slot in (("a", 0), ("b", 1)):
        assert kept.choose(session, everything) == slot
        kept.own(slot, session, returns=True)
    assert kept.choose("a", everything) == 0
    assert kept.choose("c", everything) == 2
    # Its own is taken: one that is nobody's, else that of the session that was away for longest.
    assert kept.choose("a", {1, 2}) == 2
    kept.own(2, "c", returns=True)
    kept.own(0, "a", returns=True)
    assert kept.choose("d", everything) == 1
    assert kept.choose("d", set()) is None
    # Who is not expected back has the lowest slot that is nobody's, and may come all the same.
    kept.own(1, "d", returns=False)
    assert kept.choose("d", everything) == 1
    assert kept.choose("e", everything) == 1


def test_parts_hold_until_one_before_them_is_computed_anew() -> None:
    kept = KeptParts()
    for start, stop, name in ((0, 128, b"x"), (128, 160, b"y"), (160, 200, b"z")):
        kept.put(4, start, stop, name)
    assert kept.rows(4) == 200
    assert kept.matches(4, 128, 160, b"y")
    for start, stop, name in ((128, 160, b"x"), (128, 161, b"y"), (127, 160, b"y")):
        assert not kept.matches(4, start, stop, name)
    assert not kept.matches(3, 0, 128, b"x")
    kept.put(4, 128, 190, b"other")
    assert kept.rows(4) == 190
    assert not kept.holds(4, 160)
    # Behind what is not known nothing is.
    kept.put(4, 190, 220, None)
    kept.put(4, 220, 300, b"late")
    assert kept.rows(4) == 190
    kept.drop(4, 133)
    assert kept.rows(4) == 128
    kept.drop(9, 0)
    kept.own(4, "someone", returns=True)
    assert kept.rows(4) == 0


def test_name_is_that_of_the_same_rows_turned_alike() -> None:
    ids, rows = np.arange(3, dtype=np.int32), np.ones((2, 4), np.float32)
    plain = np.repeat(np.arange(7, 10)[:, None], 3, axis=1)
    name = part_name(7, plain, ids, rows)
    assert name == part_name(7, None, ids.copy(), rows.copy())
    others = [
        part_name(7, plain - (0, 0, 1), ids, rows),
        part_name(8, plain, ids, rows),
        part_name(7, plain, ids + 1, rows),
        part_name(7, plain, ids, np.nextafter(rows, 2)),
        part_name(7, plain, ids, rows.reshape(4, 2)),
        part_name(7, plain, ids),
    ]
    assert len({name, *others}) == 7


@pytest.mark.parametrize("taken", [0, 2])
def test_slot_that_is_taken_by_choice_is_not_taken_again(taken: int) -> None:
    slots = Slots(3)
    slots.take_this(taken)
    assert slots.free_slots == {0, 1, 2} - {taken}
    assert {slots.take(), slots.take()} == {0, 1, 2} - {taken}
    assert slots.take() is None
    slots.free(taken)
    assert slots.take() == taken
