"""The states of a session on a stage. All moves are in TRANSITIONS; any other is a bug.

REGISTERED  open, no segment and no accelerator memory
WAITING     a segment is open and needs upstream input
READY       a segment is open and the engine can step it
PARKED      the last segment has finished or was cancelled; another may come
FINISHED, CANCELLED, FAILED   the end; everything is freed
"""

from __future__ import annotations

import enum

from antiphon.errors import FailedPrecondition


class State(enum.Enum):
    """Where a session stands."""

    REGISTERED = "registered"
    WAITING = "waiting"
    READY = "ready"
    PARKED = "parked"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Event(enum.Enum):
    """What can happen to a session."""

    SEGMENT_OPENED = "segment_opened"
    INPUT_AWAITED = "input_awaited"
    STEPPABLE = "steppable"
    SEGMENT_ENDED = "segment_ended"
    CLIENT_DONE = "client_done"
    STREAM_LOST = "stream_lost"
    FAULT = "fault"


OPEN = frozenset({State.WAITING, State.READY})
ENDED = frozenset({State.FINISHED, State.CANCELLED, State.FAILED})

TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.REGISTERED, Event.SEGMENT_OPENED): State.WAITING,
    (State.REGISTERED, Event.CLIENT_DONE): State.FINISHED,
    (State.REGISTERED, Event.STREAM_LOST): State.CANCELLED,
    (State.REGISTERED, Event.FAULT): State.FAILED,
    (State.WAITING, Event.INPUT_AWAITED): State.WAITING,
    (State.WAITING, Event.STEPPABLE): State.READY,
    (State.WAITING, Event.SEGMENT_ENDED): State.PARKED,
    (State.WAITING, Event.STREAM_LOST): State.CANCELLED,
    (State.WAITING, Event.FAULT): State.FAILED,
    (State.READY, Event.INPUT_AWAITED): State.WAITING,
    (State.READY, Event.STEPPABLE): State.READY,
    (State.READY, Event.SEGMENT_ENDED): State.PARKED,
    (State.READY, Event.STREAM_LOST): State.CANCELLED,
    (State.READY, Event.FAULT): State.FAILED,
    (State.PARKED, Event.SEGMENT_OPENED): State.WAITING,
    (State.PARKED, Event.CLIENT_DONE): State.FINISHED,
    (State.PARKED, Event.STREAM_LOST): State.CANCELLED,
    (State.PARKED, Event.FAULT): State.FAILED,
}


def follow(state: State, event: Event) -> State:
    """The state after an event. Raises `FailedPrecondition` for a move that is not listed."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise FailedPrecondition(f"a {state.value} session takes no {event.value}") from None
