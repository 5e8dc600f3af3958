"""The slots of one role: what a stage's refusals change, and how long one is held."""

from __future__ import annotations

import math

import pytest

from antiphon_gateway.admission.role_slots import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    NEWEST_WEIGHT,
    RoleSlots,
)


def refused(slots: RoleSlots, granted_at: float, now: float) -> None:
    """The stage refuses a slot, which is given back first."""
    slots.give_back(1, granted_at, now, measured=False)
    slots.refuse(granted_at, now)


def test_slots_that_were_taken_together_and_are_refused_make_one_pause() -> None:
    slots = RoleSlots(8, 8)
    slots.take(4, 1.0)
    for number in range(4):
        refused(slots, 1.0, 1.1 + number / 100)
    assert slots.pause_s == FIRST_PAUSE_S
    assert slots.retry_at == pytest.approx(1.13 + FIRST_PAUSE_S)
    assert slots.free == 0
    slots.try_again(1, 1.13)
    assert slots.free == 0
    slots.try_again(1, slots.retry_at)
    assert slots.free == 1


def test_each_attempt_after_a_refusal_that_is_refused_doubles_the_pause() -> None:
    slots = RoleSlots(8, 8)
    slots.take(3, 1.0)
    refused(slots, 1.0, 1.1)
    # Taken at the moment of the refusal, after it.
    slots.take(1, 1.1)
    refused(slots, 1.1, 1.2)
    assert slots.pause_s == 2 * FIRST_PAUSE_S
    refused(slots, 1.0, 1.3)
    assert slots.pause_s == 2 * FIRST_PAUSE_S, "it was taken before the first refusal"
    now = 1.3
    for _ in range(20):
        now = slots.retry_at
        slots.try_again(1, now)
        slots.take(1, now)
        refused(slots, now, now)
    assert slots.pause_s == LONGEST_PAUSE_S


def test_only_one_slot_is_tried_at_a_time_and_one_more_with_each_that_is_given() -> None:
    slots = RoleSlots(8, 8)
    slots.take(3, 0.0)
    refused(slots, 0.0, 0.1)
    assert slots.limited
    slots.try_again(1, 0.2)
    assert (slots.limit, slots.free) == (3, 1)
    slots.try_again(1, 9.0)
    assert slots.free == 1, "what is wanted is free already"
    slots.take(1, 9.0)
    slots.succeed(1)
    assert (slots.limit, slots.free, slots.pause_s) == (4, 1, FIRST_PAUSE_S)
    slots.take(1, 9.0)
    slots.succeed(4)
    assert not slots.limited, "as many as the stage tells"
    assert slots.free == 4


def test_one_that_wants_several_gets_a_slot_more_after_each_pause() -> None:
    slots = RoleSlots(8, 8)
    slots.take(1, 0.0)
    refused(slots, 0.0, 0.0)
    for number in range(1, 4):
        slots.try_again(3, slots.retry_at)
        assert slots.free == number
    before = slots.retry_at
    slots.try_again(3, before)
    assert (slots.free, slots.retry_at) == (3, before)


def test_slots_of_a_new_replica_have_refused_nobody() -> None:
    slots = RoleSlots(4, 4)
    slots.take(3, 0.0)
    for now in (0.1, 0.2):
        refused(slots, now, now)
    slots.resize(6)
    assert (slots.limit, slots.free) == (3, 2)
    assert slots.pause_s == FIRST_PAUSE_S
    slots.resize(2)
    assert (slots.free, slots.most) == (1, 6)
    slots.resize(math.inf)
    assert not slots.limited
    assert slots.most == math.inf


def test_hold_time_is_a_moving_mean_and_no_less_than_those_that_are_held_have_taken() -> None:
    slots = RoleSlots(8, 8)
    assert slots.service_s(1.0) is None
    slots.take(1, 0.0)
    slots.take(1, 4.0)
    assert slots.service_s(10.0) == pytest.approx(8.0)
    slots.give_back(1, 0.0, 10.0, measured=True)
    assert slots.mean_s == pytest.approx(10.0)
    assert slots.service_s(12.0) == pytest.approx(10.0)
    assert slots.service_s(20.0) == pytest.approx(16.0)
    slots.give_back(1, 4.0, 24.0, measured=True)
    assert slots.mean_s == pytest.approx(10.0 + NEWEST_WEIGHT * 10.0)
    slots.take(1, 30.0)
    slots.give_back(1, 30.0, 99.0, measured=False)
    assert slots.service_s(99.0) == slots.mean_s
