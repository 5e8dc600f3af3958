"""Which hidden rows leave in which step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_services.vllm.spans import NO_END, RowSpan, StepRows, Wanted, share, wanted


def spans_of(request: Wanted, computed: int, room: int = NO_END) -> list[RowSpan]:
    """What leaves in a step after which the first `computed` positions have rows."""
    request.computed = computed
    return request.take(room)


def test_request_wants_the_runs_of_its_positions() -> None:
    asked = wanted(7, np.array([3, 4, 5, 9, 20, 21]))
    parsed = Wanted.of(asked)
    assert parsed is not None
    assert (parsed.number, list(parsed.ranges)) == (7, [(3, 6), (9, 10), (20, 22)])


@pytest.mark.parametrize("parameters", [None, {}, {"do_remote_prefill": True}])
def test_request_wants_nothing_when_it_does_not_say_so(
    parameters: dict[str, object] | None,
) -> None:
    assert Wanted.of(parameters) is None


def test_request_wants_its_reply_from_where_it_begins() -> None:
    asked = Wanted.of(wanted(7, np.arange(4), reply_from=4))
    assert asked is not None
    assert spans_of(asked, 6) == [RowSpan(7, 0, 4), RowSpan(7, 4, 2)]
    assert spans_of(asked, 7) == [RowSpan(7, 6, 1)]
    only_reply = Wanted.of(wanted(7, np.empty(0, np.intp), reply_from=4))
    assert only_reply is not None
    assert spans_of(only_reply, 6) == [RowSpan(7, 4, 2)]


def test_rows_leave_once_when_a_preempted_request_computes_them_again() -> None:
    request = Wanted(1, [(2, 10)])
    assert spans_of(request, 6) == [RowSpan(1, 2, 4)]
    assert spans_of(request, 4) == []
    assert spans_of(request, 6) == []
    assert spans_of(request, 12) == [RowSpan(1, 6, 4)]


def test_first_step_brings_what_the_prefix_cache_spared() -> None:
    assert spans_of(Wanted(1, [(0, 3), (5, 8)]), 7) == [RowSpan(1, 0, 3), RowSpan(1, 5, 2)]


def test_rows_without_room_leave_later_and_those_of_a_preempted_request_when_they_are_back() -> (
    None
):
    request = Wanted(1, [(0, 4), (6, 20)])
    assert spans_of(request, 10, room=5) == [RowSpan(1, 0, 4), RowSpan(1, 6, 1)]
    assert request.waiting == 3
    assert spans_of(request, 8, room=0) == []
    assert spans_of(request, 8, room=5) == [RowSpan(1, 7, 1)]
    assert spans_of(request, 11, room=5) == [RowSpan(1, 8, 3)]


def test_replies_do_not_wait_behind_a_long_prompt() -> None:
    prompt = Wanted(0, [(0, NO_END)], computed=1000)
    reply = Wanted(1, [(0, NO_END)], sent=9, computed=10)
    requests = [prompt, reply]
    assert share(requests, 100) == [(reply, [RowSpan(1, 9, 1)]), (prompt, [RowSpan(0, 0, 99)])]
    assert share(requests, 100) == [(prompt, [RowSpan(0, 99, 100)])]
    assert share(requests, 0) == []


@given(
    positions=st.sets(st.integers(0, 80), min_size=1),
    steps=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 30)), max_size=12),
)
def test_spans_cover_every_wanted_position_once_and_in_order(
    positions: set[int], steps: list[tuple[int, int]]
) -> None:
    request = Wanted.of(wanted(0, np.array(sorted(positions))))
    assert request is not None
    left: list[int] = []
    for computed, room in [*steps, (81, NO_END)]:
        spans = spans_of(request, computed, room)
        assert sum(span.count for span in spans) <= room
        left += [at for span in spans for at in range(span.start, span.start + span.count)]
        assert all(at < computed for span in spans for at in [span.start + span.count - 1])
    assert left == sorted(positions)
    assert not request.waiting


def test_slots_follow_the_block_table() -> None:
    rows = StepRows()
    rows.add([RowSpan(1, 3, 3), RowSpan(1, 8, 1)], table=[7, 2, 5], block_size=4)
    rows.add([RowSpan(2, 0, 2)], table=[9], block_size=4)
    assert np.concatenate(rows.slots).tolist() == [31, 8, 9, 20, 36, 37]
    assert rows.spans == [RowSpan(1, 3, 3), RowSpan(1, 8, 1), RowSpan(2, 0, 2)]
