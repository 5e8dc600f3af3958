"""The table alone: a fault ends its session, whatever was raised, and no other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from antiphon.errors import DataLoss, FailedPrecondition, Internal, InvalidArgument
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import Completed, Emitted
from antiphon.runtime.session.facts import (
    ChunkArrived,
    ChunkMalformed,
    EngineStepped,
    SegmentRequested,
    SegmentStatus,
    SessionRequested,
    StreamLost,
)
from antiphon.runtime.session.instructions import Destination, End, Instruction, Release, Send
from antiphon.runtime.session.plan import (
    MAX_ADDRESS,
    MAX_DESTINATIONS,
    MAX_SECONDS,
    MAX_WINDOW,
    SegmentRequest,
    SessionRequest,
    StageLimits,
    StagePlan,
)
from antiphon.runtime.session.states import State
from antiphon.runtime.session.table import SessionTable
from antiphon.values.chunk import MAX_NAME, Chunk
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING

LIMITS = StageLimits(slots=2, stall_timeout_s=30.0, hold_timeout_s=5.0, hold_bytes=4096)
ROUTES = {"audio": (Destination(),)}
SCALAR = {"samples": np.array(1.0, np.float32)}
SAMPLES = {"samples": np.zeros(4, np.float32)}


def two_sessions(reported: list[str] | None = None) -> SessionTable:
    """Sessions "a" and "b", each with an open segment."""

    def report(session_id: str, error: Exception) -> None:
        assert reported is not None
        reported.append(f"{session_id}: {type(error).__name__}")

    plan = StagePlan.of(PIPELINE, "code2wav", NEUTRAL_SAMPLING, LIMITS)
    sessions = SessionTable(plan, report)
    for name in ("a", "b"):
        sessions.handle(SessionRequested(SessionRequest(name, ROUTES, windows={"codes": 100})), 0.0)
        turn = SegmentRequest(0, SamplingRequest(), "", frozenset({"audio"}), {})
        sessions.handle(SegmentRequested(name, turn), 0.0)
    return sessions


def ends(instructions: list[Instruction]) -> dict[str, type[Exception] | None]:
    return {
        each.session_id: type(each.error) if each.error else None
        for each in instructions
        if isinstance(each, End)
    }


def test_unexpected_exception_ends_its_session_and_the_rest_of_the_step_is_taken() -> None:
    reported: list[str] = []
    sessions = two_sessions(reported)
    a, b = SegmentKey("a", 0), SegmentKey("b", 0)
    events = [
        Emitted(a, "audio", 0, SCALAR),
        Emitted(a, "audio", 0, SAMPLES),
        Emitted(b, "audio", 0, SAMPLES, FinishReason.STOP),
        Completed(b, FinishReason.STOP, 1, 4),
    ]
    standing = {a: SegmentStatus(None, 0), b: SegmentStatus(None, 0)}
    done = sessions.handle(EngineStepped(events, standing), 1.0)
    assert reported == ["a: TypeError"]
    assert ends(done) == {"a": Internal}
    assert [each.key for each in done if isinstance(each, Release)] == [a, b]
    assert [each.chunk.session_id for each in done if isinstance(each, Send)] == ["b"]
    assert sessions.state("a") is None
    assert sessions.state("b") is State.PARKED
    assert sessions.open_segments == 0
    with pytest.raises(FailedPrecondition):
        sessions.handle(SessionRequested(SessionRequest("a", ROUTES)), 2.0)


def test_governed_scalar_is_data_loss_that_names_the_edge() -> None:
    sessions = two_sessions()
    chunk = Chunk("a", "codes", tensors={"codes": np.array(3, np.uint16)})
    done = sessions.handle(ChunkArrived(chunk, "link"), 1.0)
    assert ends(done) == {"a": DataLoss}
    assert sessions.state("b") is State.OPEN


def test_session_fails_as_it_opens_when_a_malformed_chunk_came_before() -> None:
    sessions = two_sessions()
    sessions.handle(ChunkArrived(Chunk("c", "codes"), "link"), 0.0)
    assert sessions.handle(ChunkMalformed("c", DataLoss("broken")), 0.0) == []
    assert sessions.held_bytes == 0
    with pytest.raises(DataLoss, match="broken"):
        sessions.handle(SessionRequested(SessionRequest("c", ROUTES)), 1.0)
    assert ends(sessions.handle(ChunkMalformed("a", DataLoss("broken")), 0.0)) == {"a": DataLoss}


def test_malformed_chunk_of_an_ended_session_changes_nothing() -> None:
    sessions = two_sessions()
    sessions.handle(StreamLost("a"), 0.0)
    assert sessions.handle(ChunkMalformed("a", DataLoss("broken")), 0.0) == []
    with pytest.raises(FailedPrecondition, match="already opened"):
        sessions.handle(SessionRequested(SessionRequest("a", ROUTES)), 1.0)


def test_id_that_is_too_long_is_not_remembered() -> None:
    sessions = two_sessions()
    name = "x" * (MAX_NAME + 1)
    sessions.handle(ChunkMalformed(name, DataLoss("broken")), 0.0)
    assert sessions.handle(ChunkArrived(Chunk(name, "codes"), "link"), 0.0) == []
    with pytest.raises(InvalidArgument, match="session_id"):
        SessionRequest(name, ROUTES)
    SessionRequest("x" * MAX_NAME, ROUTES)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, MAX_SECONDS * 1.01])
def test_request_is_refused_when_no_clock_can_keep_its_time(seconds: float) -> None:
    with pytest.raises(InvalidArgument, match="stall_timeout_s"):
        SessionRequest("s", ROUTES, stall_timeout_s=seconds)
    with pytest.raises(InvalidArgument, match="deadline_s"):
        SegmentRequest(0, SamplingRequest(), "", frozenset(), {}, deadline_s=seconds)
    SessionRequest("s", ROUTES, stall_timeout_s=MAX_SECONDS)


def test_request_is_refused_when_a_name_or_a_list_in_it_is_too_long() -> None:
    sessions = two_sessions()
    for most, more in (
        ([Destination("x" * MAX_ADDRESS)], [Destination("x" * (MAX_ADDRESS + 1))]),
        ([Destination("x")] * MAX_DESTINATIONS, [Destination("x")] * (MAX_DESTINATIONS + 1)),
    ):
        sessions.handle(
            SessionRequested(SessionRequest(f"c-{len(most)}", {"audio": tuple(most)})), 0.0
        )
        with pytest.raises(InvalidArgument, match=r"routes\.audio"):
            sessions.handle(SessionRequested(SessionRequest("d", {"audio": tuple(more)})), 0.0)
    SegmentRequest(0, SamplingRequest(), "x" * MAX_NAME, frozenset(), {})
    with pytest.raises(InvalidArgument, match="voice"):
        SegmentRequest(0, SamplingRequest(), "x" * (MAX_NAME + 1), frozenset(), {})


@pytest.mark.parametrize("window", [0, -1, MAX_WINDOW + 1, (1 << 64) - 1])
def test_session_is_refused_when_its_window_is_out_of_range(window: int) -> None:
    sessions = two_sessions()
    with pytest.raises(InvalidArgument, match=r"windows\.codes"):
        sessions.handle(
            SessionRequested(SessionRequest("c", ROUTES, windows={"codes": window})), 0.0
        )
    assert sessions.state("c") is None
    sessions.handle(
        SessionRequested(SessionRequest("c", ROUTES, windows={"codes": MAX_WINDOW})), 0.0
    )
