"""A deadline that a waiter's own absence does not spend."""

from __future__ import annotations

import pytest

from antiphon.deadlines.awake_deadline import ON_TIME_S, SLICE_S, AwakeDeadline


def slices_until_passed(deadline: AwakeDeadline, *late: float) -> tuple[int, float]:
    """Wait it out, with this lateness of the first slices: how many slices and seconds it takes."""
    lateness = iter(late)
    slices, seconds = 0, 0.0
    while not deadline.passed:
        slice_s, late_s = deadline.next_slice_s, next(lateness, 0.0)
        deadline.waited(slice_s, late_s)
        slices, seconds = slices + 1, seconds + slice_s + late_s
    return slices, seconds


def test_a_deadline_passes_after_its_budget_when_every_slice_is_on_time() -> None:
    assert slices_until_passed(AwakeDeadline(1.5))[1] == pytest.approx(1.5)
    # What a running loop is late by does not add up.
    jitter = [ON_TIME_S] * 100
    assert slices_until_passed(AwakeDeadline(1.5), *jitter)[1] < 1.5 + SLICE_S + ON_TIME_S


@pytest.mark.parametrize("stall_s", [0.5, 1.5, 60.0])
@pytest.mark.parametrize("at", [0, 7, 14])
def test_a_stall_of_the_waiter_spends_nothing_wherever_it_falls(stall_s: float, at: int) -> None:
    deadline = AwakeDeadline(1.5)
    _, seconds = slices_until_passed(deadline, *[0.0] * at, stall_s)
    assert seconds >= 1.5 + stall_s


def test_the_last_slice_after_a_stall_is_a_whole_punctual_one() -> None:
    deadline = AwakeDeadline(SLICE_S)
    deadline.waited(0.99 * SLICE_S, 0.0)
    assert deadline.next_slice_s < SLICE_S / 2
    deadline.waited(deadline.next_slice_s, 10.0)
    assert not deadline.passed
    assert deadline.next_slice_s == SLICE_S


def test_a_waiter_that_is_late_by_most_of_each_slice_takes_four_times_as_long() -> None:
    late_s = 0.6 * SLICE_S
    _, seconds = slices_until_passed(AwakeDeadline(1.0), *[late_s] * 1000)
    assert seconds == pytest.approx(4.0, abs=0.2)


def test_a_restarted_deadline_has_its_whole_budget() -> None:
    deadline = AwakeDeadline(0.3)
    slices_until_passed(deadline)
    deadline.restart()
    assert slices_until_passed(deadline)[1] == pytest.approx(0.3)
