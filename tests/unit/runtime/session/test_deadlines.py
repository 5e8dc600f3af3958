"""The heap of deadlines against the plain thing: a dictionary that is searched."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.runtime.session.deadlines import Deadlines
from tests.allocated import bytes_held_after

# A moment, its key and their place in the heap; measured: 150.
ENTRY_BYTES = 200
KEYS = st.sampled_from("abcd")
MOMENTS = st.one_of(st.none(), st.integers(0, 20).map(float))
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), KEYS, MOMENTS),
        st.tuples(st.just("forget"), KEYS, st.none()),
        st.tuples(st.just("due"), KEYS, st.integers(0, 20).map(float)),
    ),
    max_size=60,
)


def test_postponed_key_is_due_early_once_and_then_at_its_moment() -> None:
    deadlines = Deadlines()
    deadlines.enter("a", 5.0)
    deadlines.enter("a", 9.0)
    assert deadlines.next() == 5.0
    assert deadlines.due(5.0) == ["a"]
    deadlines.enter("a", 9.0)
    assert deadlines.due(8.9) == []
    assert deadlines.due(9.0) == ["a"]
    assert deadlines.next() is None


def test_earlier_moment_takes_the_place_of_a_later_one() -> None:
    deadlines = Deadlines()
    deadlines.enter("a", 9.0)
    deadlines.enter("a", 5.0)
    assert deadlines.due(9.0) == ["a"]
    assert deadlines.next() is None


def test_forgotten_key_is_never_due() -> None:
    deadlines = Deadlines()
    deadlines.enter("a", 5.0)
    deadlines.enter("b", 6.0)
    deadlines.forget("a")
    assert deadlines.next() == 6.0
    assert deadlines.due(10.0) == ["b"]


@given(MOVES)
def test_nobody_is_ever_late(moves: list[tuple[str, str, float | None]]) -> None:
    deadlines = Deadlines()
    wanted: dict[str, float] = {}
    for move, key, moment in moves:
        match move:
            case "enter":
                deadlines.enter(key, moment)
                wanted.pop(key, None)
                if moment is not None:
                    wanted[key] = moment
            case "forget":
                deadlines.forget(key)
                wanted.pop(key, None)
            case _:
                assert moment is not None
                due = deadlines.due(moment)
                assert {each for each, at in wanted.items() if at <= moment} <= set(due)
                for each in due:
                    deadlines.enter(each, wanted.get(each))
        earliest = min(wanted.values(), default=None)
        if earliest is not None:
            following = deadlines.next()
            assert following is not None
            assert following <= earliest


def test_heap_stays_small_when_many_keys_come_and_go() -> None:
    deadlines = Deadlines()

    def come_and_go() -> None:
        for number in range(10_000):
            deadlines.enter(str(number), 1e6 - number)
            deadlines.forget(str(number))

    assert bytes_held_after(come_and_go) < 200 * ENTRY_BYTES
    assert deadlines.next() is None


def test_heap_stays_small_when_one_key_is_brought_forward_again_and_again() -> None:
    deadlines = Deadlines()

    def bring_forward() -> None:
        for number in range(10_000):
            deadlines.enter("a", 1e6 - number)

    assert bytes_held_after(bring_forward) < 200 * ENTRY_BYTES
    assert deadlines.next() == 1e6 - 9_999
