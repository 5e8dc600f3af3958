"""The states of a session on a stage. Only the transitions in TRANSITIONS are valid, so any other
transition is a bug.

- REGISTERED: There hasn't been a segment yet, and no accelerator memory is in use.
- OPEN: A segment is open. It may or may not be waiting for input.
- PARKED: The last segment has finished or was cancelled, and another one may follow.
- FINISHED, CANCELLED, FAILED: The session has ended, and all of its resources have been freed.

If a session ends while it has an open segment, the session is parked first. This way, segments are
freed in only one place.
"""

from __future__ import annotations

import enum

from antiphon.errors import FailedPrecondition


class State(enum.Enum):
    """The state of a session."""

    REGISTERED = "registered"
    OPEN = "open"
    PARKED = "parked"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Event(enum.Enum):
    """An event that can happen to a session."""

    SEGMENT_OPENED = "segment_opened"
    SEGMENT_ENDED = "segment_ended"
    CLIENT_DONE = "client_done"
    STREAM_LOST = "stream_lost"
    FAULT = "fault"


ENDED = frozenset({State.FINISHED, State.CANCELLED, State.FAILED})

TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.REGISTERED, Event.SEGMENT_OPENED): State.OPEN,
    (State.REGISTERED, Event.CLIENT_DONE): State.FINISHED,
    (State.REGISTERED, Event.STREAM_LOST): State.CANCELLED,
    (State.REGISTERED, Event.FAULT): State.FAILED,
    (State.OPEN, Event.SEGMENT_ENDED): State.PARKED,
    (State.PARKED, Event.SEGMENT_OPENED): State.OPEN,
    (State.PARKED, Event.CLIENT_DONE): State.FINISHED,
    (State.PARKED, Event.STREAM_LOST): State.CANCELLED,
    (State.PARKED, Event.FAULT): State.FAILED,
}


def follow(state: State, event: Event) -> State:
    """Return the state after an event. Raises `FailedPrecondition` if there is no such
    transition.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise FailedPrecondition(
            f"the event {event.value} is not allowed in the state {state.value}"
        ) from None
