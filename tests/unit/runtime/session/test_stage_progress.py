"""When a stage says that it works on a segment, and what that does to a stage that waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import pytest

from antiphon.runtime.engine import Advanced, Emitted, EngineEvent, SegmentSettings
from antiphon.runtime.session.facts import (
    EngineStepped,
    SegmentRequested,
    SegmentStatus,
    SessionRequested,
    TimePassed,
    UpstreamProgressed,
)
from antiphon.runtime.session.instructions import Admit, Destination, End, Progress, Release, Send
from antiphon.runtime.session.plan import SessionRequest
from antiphon.runtime.session.states import State
from antiphon.runtime.session.table import SessionTable
from antiphon.runtime.stepping.rounds import EngineRounds
from antiphon.values.segment import SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING, FakeEngine
from tests.unit.runtime.session.test_session_table import (
    KEY,
    LIMITS,
    chunk,
    kinds,
    opened,
    segment,
    table,
)

IN_STEP = frozenset({KEY})
KNOWN = {KEY: SegmentStatus(None, 1)}
SETTINGS = SegmentSettings("", NEUTRAL_SAMPLING, frozenset({"audio"}))


class Preparing(FakeEngine):
    """Whose segments are got ready elsewhere: those that are not in `ready`."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: set[SegmentKey] = set()

    def awaited_edge(self, key: SegmentKey) -> str | None:
        return None

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        return ()

    def prepares(self, key: SegmentKey) -> bool:
        return key not in self.ready

    def wake_with(self, wake: Callable[[], None]) -> None:
        raise AssertionError("only rounds are made here")

    def close(self) -> None:
        raise AssertionError("only rounds are made here")


@pytest.fixture
def working() -> SessionTable:
    """A session whose engine has input and has begun with it, at 0."""
    sessions = opened()
    sessions.handle(chunk(), 0.0)
    sessions.handle(EngineStepped([], KNOWN), 0.0)
    return sessions


def stepped(sessions: SessionTable, now: float, *events: Emitted) -> list[type]:
    return kinds(sessions.handle(EngineStepped(events, KNOWN, worked_on=IN_STEP), now))


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


def test_steps_are_told_ten_times_a_second_and_when_all_are_done(working: SessionTable) -> None:
    assert LIMITS.steps_s == 0.1

    def told(now: float, done: int) -> list[tuple[int, int]]:
        fact = EngineStepped([Advanced(KEY, done, 5)], worked_on=IN_STEP)
        sent = working.handle(fact, now)
        return [(each.done, each.due) for each in sent if isinstance(each, Progress)]

    moments = (0.01, 0.05, 0.11, 0.2, 0.205)
    assert [told(now, done) for done, now in enumerate(moments, 1)] == [
        [(1, 5)],
        [],
        [(3, 5)],
        [],
        [(5, 5)],
    ]
    assert stepped(working, 1.2) == [], "steps are progress enough"
    assert stepped(working, 1.205) == [Progress]


def test_output_for_another_stage_is_no_word_on_the_sessions_stream() -> None:
    sessions = table(role="talker")
    routes = {"codes": (Destination("next:1"),)}
    sessions.handle(SessionRequested(SessionRequest("s", routes)), 0.0)
    sessions.handle(SegmentRequested("s", segment()), 0.0)
    frame = {"codes": np.zeros((1, 2), np.uint16)}
    for position, now, expected in ((0, 0.5, [Send]), (1, 1.0, [Send, Progress])):
        emitted = Emitted(KEY, "codes", position, frame)
        # Nothing is told of where it stands: that has not changed.
        done = sessions.handle(EngineStepped([emitted], worked_on=IN_STEP), now)
        assert kinds(done) == expected


def test_a_segment_that_was_not_in_the_step_makes_no_progress(working: SessionTable) -> None:
    """As when the engine serves others, or hangs and steps no more."""
    assert not working.handle(EngineStepped(), 10.0)
    assert not working.handle(TimePassed(), 10.0)


def test_a_segment_that_moves_up_in_the_queue_of_preparations_makes_progress(
    working: SessionTable,
) -> None:
    def moved_up(now: float, *keys: SegmentKey) -> list[type]:
        return kinds(working.handle(EngineStepped([], KNOWN, worked_on=frozenset(keys)), now))

    assert moved_up(2.0) == []
    assert moved_up(2.0, KEY) == [Progress]


def test_those_that_are_still_prepared_move_up_when_another_is_ready() -> None:
    engine = Preparing()
    rounds = EngineRounds(engine, {})
    first, second = SegmentKey("first", 0), SegmentKey("second", 0)
    batch = rounds.run([Admit(key, SETTINGS) for key in (first, second)])
    assert batch.worked_on == frozenset()
    engine.ready.add(first)
    moved_up = rounds.run([])
    assert moved_up.worked_on == {first, second}
    assert second in moved_up.standing
    assert rounds.run([]).worked_on == {first}, "nobody else became ready"
    third = SegmentKey("third", 0)
    rounds.run([Admit(third, SETTINGS)])
    assert rounds.run([Release(second)]).worked_on == {first}, "that one gave up"


def test_progress_upstream_starts_the_stall_clock_again() -> None:
    sessions = opened()
    sessions.handle(EngineStepped([], {KEY: SegmentStatus("codes", 0)}), 0.0)
    assert sessions.state("s") is State.OPEN
    stall_s = LIMITS.stall_timeout_s
    sessions.handle(UpstreamProgressed(KEY), stall_s - 1)
    sessions.handle(UpstreamProgressed(SegmentKey("s", 1)), stall_s)
    assert not sessions.handle(TimePassed(), stall_s)
    assert sessions.next_deadline() == 2 * stall_s - 1
    assert kinds(sessions.handle(TimePassed(), 2 * stall_s - 1))[-1] is End


def test_stall_clock_of_a_turn_that_stepped_for_long_starts_when_it_waits(
    working: SessionTable,
) -> None:
    """By then nothing is known any more of the clock that ran when its input came."""
    stall_s = LIMITS.stall_timeout_s
    assert not working.handle(TimePassed(), 10 * stall_s)
    assert working.next_deadline() is None
    working.handle(EngineStepped([], {KEY: SegmentStatus("codes", 1)}), 10 * stall_s)
    assert working.next_deadline() == 11 * stall_s
    assert kinds(working.handle(TimePassed(), 11 * stall_s))[-1] is End
