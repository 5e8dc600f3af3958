"""Which hidden rows leave in which step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.vllm.spans import RowSpan, StepRows, Wanted, wanted


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


def test_rows_leave_once_when_a_preempted_request_computes_them_again() -> None:
    request = Wanted(1, [(2, 10)])
    assert request.take(6) == [RowSpan(1, 2, 4)]
    assert request.take(4) == []
    assert request.take(6) == []
    assert request.take(12) == [RowSpan(1, 6, 4)]


def test_first_step_brings_what_the_prefix_cache_spared() -> None:
    assert Wanted(1, [(0, 3), (5, 8)]).take(7) == [RowSpan(1, 0, 3), RowSpan(1, 5, 2)]


@given(
    positions=st.sets(st.integers(0, 80), min_size=1),
    ends=st.lists(st.integers(0, 90), max_size=12),
)
def test_spans_cover_every_wanted_position_once_and_in_order(
    positions: set[int], ends: list[int]
) -> None:
    request = Wanted.of(wanted(0, np.array(sorted(positions))))
    assert request is not None
    left = [
        position
        for end in [*ends, 81]
        for span in request.take(end)
        for position in range(span.start, span.start + span.count)
    ]
    assert left == sorted(positions)


def test_slots_follow_the_block_table() -> None:
    rows = StepRows()
    rows.add([RowSpan(1, 3, 3), RowSpan(1, 8, 1)], table=[7, 2, 5], block_size=4)
    rows.add([RowSpan(2, 0, 2)], table=[9], block_size=4)
    assert np.concatenate(rows.slots).tolist() == [31, 8, 9, 20, 36, 37]
    assert rows.spans == [RowSpan(1, 3, 3), RowSpan(1, 8, 1), RowSpan(2, 0, 2)]
