from __future__ import annotations

import itertools

import pytest

from antiphon.errors import FailedPrecondition
from antiphon.runtime.session.states import ENDED, TRANSITIONS, Event, State, follow


def test_follow_raises_for_every_move_that_is_not_listed() -> None:
    for state, event in itertools.product(State, Event):
        if (state, event) not in TRANSITIONS:
            with pytest.raises(FailedPrecondition):
                follow(state, event)


def test_ended_states_have_no_way_out() -> None:
    assert not [state for state, _ in TRANSITIONS if state in ENDED]


def test_every_living_state_can_fail_and_be_cancelled() -> None:
    for state in set(State) - ENDED:
        # What ends a session with an open segment parks it first.
        freed = follow(state, Event.SEGMENT_ENDED) if state is State.OPEN else state
        assert follow(freed, Event.FAULT) is State.FAILED
        assert follow(freed, Event.STREAM_LOST) is State.CANCELLED


def test_every_move_can_be_reached() -> None:
    reached, ahead = set(), {State.REGISTERED}
    while ahead:
        reached |= ahead
        ahead = {to for (state, _), to in TRANSITIONS.items() if state in reached} - reached
    assert reached == set(State)
