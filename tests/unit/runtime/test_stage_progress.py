"""When a stage says that it works on a segment, and what that does to a stage that waits."""

from __future__ import annotations

import numpy as np
import pytest
from test_session_table import KEY, LIMITS, chunk, kinds, opened

from antiphon.runtime.engine import Emitted
from antiphon.runtime.instructions import End, Progress, Send
from antiphon.runtime.session import State
from antiphon.runtime.session_table import SessionTable
from antiphon.segment import SegmentKey

BUSY = {KEY: 0.01}


@pytest.fixture
def working() -> SessionTable:
    """A session whose engine has input and has begun with it, at 0."""
    sessions = opened()
    sessions.chunk_arrived(chunk(), 0.0)
    sessions.engine_stepped([], {KEY: None}, {}, 0.0, {KEY: 1})
    return sessions


def stepped(sessions: SessionTable, now: float, *events: Emitted) -> list[type]:
    return kinds(sessions.engine_stepped(events, {KEY: None}, BUSY, now, {KEY: 1}))


def test_steps_without_output_are_progress_and_once_in_a_while(working: SessionTable) -> None:
    assert LIMITS.progress_s == 1.0
    assert [stepped(working, now) for now in (0.5, 0.99, 1.0, 1.5, 1.99)] == [
        [],
        [],
        [Progress],
        [],
        [],
    ]
    assert stepped(working, 2.0) == [Progress]


def test_output_on_the_sessions_stream_is_progress_enough(working: SessionTable) -> None:
    tensors = {"samples": np.zeros(4, np.float32), "codes": np.zeros((1, 2), np.uint16)}
    assert stepped(working, 1.5, Emitted(KEY, "audio", 0, tensors)) == [Send]
    assert stepped(working, 2.4) == []
    assert stepped(working, 2.5) == [Progress]


def test_a_segment_that_was_not_in_the_step_makes_no_progress(working: SessionTable) -> None:
    """As when the engine serves others, or hangs and steps no more."""
    assert not working.engine_stepped([], {}, {}, 10.0)
    assert not working.tick(10.0)


def test_progress_upstream_starts_the_stall_clock_again() -> None:
    sessions = opened()
    sessions.engine_stepped([], {KEY: "codes"}, {}, 0.0, {KEY: 0})
    assert sessions.state("s") is State.WAITING
    stall_s = LIMITS.stall_timeout_s
    sessions.upstream_progressed(KEY, stall_s - 1)
    sessions.upstream_progressed(SegmentKey("s", 1), stall_s)
    assert sessions.next_deadline() == 2 * stall_s - 1
    assert not sessions.tick(stall_s)
    assert kinds(sessions.tick(2 * stall_s - 1))[-1] is End
