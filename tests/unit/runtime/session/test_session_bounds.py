"""The table alone: what sessions and chunks may take of it, and for how long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from antiphon.errors import DeadlineExceeded, ResourceExhausted
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import Completed, Emitted
from antiphon.runtime.session.facts import (
    ChunkArrived,
    Credited,
    EngineStepped,
    SegmentCancelled,
    SegmentRequested,
    SegmentStatus,
    SessionRequested,
    StreamLost,
    TimePassed,
)
from antiphon.runtime.session.inbox import CHUNK_BYTES, EarlyChunks
from antiphon.runtime.session.instructions import Destination, End, Feed, Instruction, Refuse
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest, StageLimits, StagePlan
from antiphon.runtime.session.states import State
from antiphon.runtime.session.table import SessionTable
from antiphon.values.chunk import Chunk
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING

LIMITS = StageLimits(
    slots=2,
    stall_timeout_s=30.0,
    hold_timeout_s=5.0,
    hold_bytes=10 * CHUNK_BYTES,
    max_sessions=3,
    idle_session_timeout_s=100.0,
)
KEY = SegmentKey("s", 0)
STOP = FinishReason.STOP


def table(limits: StageLimits = LIMITS) -> SessionTable:
    return SessionTable(StagePlan.of(PIPELINE, "code2wav", NEUTRAL_SAMPLING, limits))


def register(sessions: SessionTable, name: str, now: float) -> list[Instruction]:
    return sessions.handle(SessionRequested(SessionRequest(name, {"audio": (Destination(),)})), now)


def turn(number: int = 0) -> SegmentRequest:
    return SegmentRequest(number, SamplingRequest(), "", frozenset({"audio"}), {})


def bare(name: str, sequence: int = 0, segment: int = 0) -> ChunkArrived:
    return ChunkArrived(Chunk(name, "codes", segment=segment, sequence=sequence), "link")


def error_of(instructions: list[Instruction]) -> Exception | None:
    (only,) = (each for each in instructions if isinstance(each, End | Refuse))
    return only.error


# -- chunks of sessions that are not open ---------------------------------------------------


def test_empty_chunks_of_unknown_sessions_fill_the_bound() -> None:
    sessions = table()
    for number in range(10):
        assert sessions.handle(bare(f"unknown-{number}"), 0.0) == []
    assert sessions.held_bytes == LIMITS.hold_bytes
    error = error_of(sessions.handle(bare("one more"), 0.0))
    assert isinstance(error, ResourceExhausted)
    assert "hold_bytes" in error.message
    register(sessions, "unknown-3", 1.0)
    assert sessions.held_bytes == LIMITS.hold_bytes - CHUNK_BYTES
    assert sessions.handle(bare("one more"), 1.0) == []


def test_tensors_count_beside_what_every_chunk_takes() -> None:
    sessions = table()
    tensors = {"codes": np.zeros((100, 2), np.uint16)}
    sessions.handle(ChunkArrived(Chunk("s", "codes", tensors=tensors), "link"), 0.0)
    assert sessions.held_bytes == CHUNK_BYTES + 400


def test_hold_time_counts_from_a_sessions_first_chunk() -> None:
    sessions = table()
    sessions.handle(bare("s", 0), 0.0)
    sessions.handle(bare("t", 0), 2.0)
    sessions.handle(bare("s", 1), 4.0)
    assert sessions.next_deadline() == 5.0
    assert sessions.handle(TimePassed(), 4.9) == []
    assert isinstance(error_of(sessions.handle(TimePassed(), 5.0)), DeadlineExceeded)
    assert sessions.held_bytes == CHUNK_BYTES
    assert sessions.next_deadline() == 7.0
    assert isinstance(error_of(sessions.handle(TimePassed(), 7.0)), DeadlineExceeded)
    assert sessions.held_bytes == 0
    assert sessions.next_deadline() is None


class Moment(float):
    """A time that counts how often it is looked at."""

    looks = 0

    def __lt__(self, other: float) -> bool:
        Moment.looks += 1
        return super().__lt__(other)

    def __add__(self, other: float) -> float:
        Moment.looks += 1
        return super().__add__(other)


def test_next_expiry_does_not_look_at_every_held_session() -> None:
    holding = EarlyChunks(limit_bytes=1 << 30, timeout_s=5.0)
    for number in range(1000):
        holding.hold(bare(f"unknown-{number}"), Moment(number))
    Moment.looks = 0
    holding.hold(bare("unknown-1000"), Moment(1000))
    assert holding.next_expiry == 5.0
    assert holding.expired(4.0) == ()
    assert [name for name, _ in holding.expired(6.0)] == ["unknown-0", "unknown-1"]
    assert Moment.looks < 20


def test_next_expiry_is_that_of_the_session_held_longest() -> None:
    holding = EarlyChunks(limit_bytes=1 << 30, timeout_s=5.0)
    assert holding.next_expiry is None
    for moment, session_id in enumerate(("a", "b", "a", "c")):
        holding.hold(bare(session_id), float(moment))
    assert holding.next_expiry == 5.0
    holding.take("a")
    assert holding.next_expiry == 6.0
    holding.close("c")
    holding.close("unknown")
    assert holding.next_expiry == 6.0
    assert [name for name, _ in holding.expired(6.0)] == ["b"]
    assert holding.next_expiry is None


def test_ids_of_ended_sessions_are_remembered_up_to_a_bound() -> None:
    holding = EarlyChunks(limit_bytes=1 << 30, timeout_s=5.0, remembered=2)
    for name in ("a", "b", "c"):
        holding.close(name)
    assert [holding.is_closed(name) for name in ("a", "b", "c")] == [False, True, True]


# -- chunks of later segments ---------------------------------------------------------------


def test_early_chunks_are_counted_anew_for_every_segment() -> None:
    sessions = table(replace(LIMITS, hold_bytes=4 * CHUNK_BYTES))
    register(sessions, "s", 0.0)
    sequence = 0
    for number in range(3):
        for _ in range(4):
            assert sessions.handle(bare("s", sequence, number), 0.0) == []
            sequence += 1
        done = sessions.handle(SegmentRequested("s", turn(number)), 0.0)
        assert sum(isinstance(each, Feed) for each in done) == 4
        sessions.handle(SegmentCancelled("s", number), 0.0)
    assert sessions.state("s") is State.PARKED


def test_empty_early_chunks_fail_their_session_when_they_fill_the_bound() -> None:
    sessions = table()
    register(sessions, "s", 0.0)
    for sequence in range(10):
        assert sessions.handle(bare("s", sequence), 0.0) == []
    error = error_of(sessions.handle(bare("s", 10), 0.0))
    assert isinstance(error, ResourceExhausted)
    assert "hold_bytes" in error.message


# -- sessions -------------------------------------------------------------------------------


def test_session_is_refused_when_as_many_as_may_are_registered() -> None:
    sessions = table()
    for name in ("a", "b", "c"):
        register(sessions, name, 0.0)
    sessions.handle(bare("d"), 0.0)
    with pytest.raises(ResourceExhausted, match="max_sessions") as caught:
        register(sessions, "d", 0.0)
    assert caught.value.retryable
    assert sessions.session_count == 3
    sessions.handle(StreamLost("b"), 0.0)
    register(sessions, "d", 1.0)
    assert sessions.held_bytes == 0


def test_session_fails_when_no_segment_is_opened_for_long() -> None:
    sessions = table()
    register(sessions, "s", 1.0)
    assert sessions.next_deadline() == 101.0
    assert sessions.handle(TimePassed(), 100.9) == []
    error = error_of(sessions.handle(TimePassed(), 101.0))
    assert isinstance(error, DeadlineExceeded)
    assert "idle_session_timeout_s" in error.message
    assert sessions.session_count == 0
    assert sessions.next_deadline() is None


def test_idle_clock_stands_while_a_segment_is_open_and_starts_again_after_it() -> None:
    sessions = table()
    register(sessions, "s", 0.0)
    sessions.handle(SegmentRequested("s", turn()), 50.0)
    sessions.handle(EngineStepped([], {KEY: SegmentStatus(None, 0)}), 50.0)
    assert sessions.handle(TimePassed(), 1000.0) == []
    assert sessions.next_deadline() is None
    ending = [Emitted(KEY, "audio", 0, {}, STOP), Completed(KEY, STOP, 0, 0)]
    sessions.handle(EngineStepped(ending), 1000.0)
    assert sessions.state("s") is State.PARKED
    assert sessions.next_deadline() == 1100.0
    sessions.handle(SegmentRequested("s", turn(1)), 1099.0)
    sessions.handle(SegmentCancelled("s", 1), 1200.0)
    assert sessions.handle(TimePassed(), 1299.0) == []
    assert sessions.next_deadline() == 1300.0
    assert isinstance(error_of(sessions.handle(TimePassed(), 1300.0)), DeadlineExceeded)


def test_idle_clock_starts_when_held_output_has_left() -> None:
    sessions = table()
    request = SessionRequest("s", {"audio": (Destination(),)}, windows={"audio": 4})
    sessions.handle(SessionRequested(request), 0.0)
    sessions.handle(SegmentRequested("s", turn()), 0.0)
    samples = {"samples": np.zeros(8, np.float32)}
    made = [Emitted(KEY, "audio", 0, samples), Emitted(KEY, "audio", 8, samples, STOP)]
    sessions.handle(EngineStepped([*made, Completed(KEY, STOP, 2, 16)]), 10.0)
    assert sessions.held_segments == 1
    assert sessions.handle(TimePassed(), 500.0) == []
    sessions.handle(Credited(KEY, "audio", Destination(), 100), 500.0)
    assert sessions.state("s") is State.PARKED
    assert sessions.next_deadline() == 600.0
