"""The table alone: facts in, instructions out, the time an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from antiphon.errors import (
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import Completed, Emitted, Failed
from antiphon.runtime.session.facts import (
    ChunkArrived,
    ClientDone,
    DestinationLost,
    EngineStepped,
    LinkLost,
    SegmentCancelled,
    SegmentRequested,
    SegmentStatus,
    SessionRequested,
    StreamLost,
    TimePassed,
)
from antiphon.runtime.session.instructions import (
    Admit,
    Destination,
    End,
    Feed,
    Instruction,
    Opened,
    Refuse,
    Release,
    Report,
    SegmentOpened,
    Send,
)
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest, StageLimits, StagePlan
from antiphon.runtime.session.states import State
from antiphon.runtime.session.table import SessionTable
from antiphon.values.chunk import Chunk
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import Delivery, FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING

LIMITS = StageLimits(
    slots=2,
    stall_timeout_s=30.0,
    hold_timeout_s=5.0,
    hold_bytes=4000,
    idle_session_timeout_s=3600.0,
)
KEY = SegmentKey("s", 0)
AUDIO = {"audio": (Destination(),)}


def table(limits: StageLimits = LIMITS, role: str = "code2wav") -> SessionTable:
    return SessionTable(StagePlan.of(PIPELINE, role, NEUTRAL_SAMPLING, limits))


def segment(number: int = 0, **changes: object) -> SegmentRequest:
    request = SegmentRequest(number, SamplingRequest(), "", frozenset({"audio"}), {})
    return replace(request, **changes)  # type: ignore[arg-type]


def chunk(
    sequence: int = 0, *, number: int = 0, frames: int = 1, end: bool = False
) -> ChunkArrived:
    codes = np.zeros((frames, 2), np.uint16)
    return ChunkArrived(
        Chunk(
            "s",
            "codes",
            segment=number,
            sequence=sequence,
            tensors={"codes": codes} if frames else {},
            segment_finished=end,
            finish_reason=FinishReason.STOP if end else None,
        ),
        "link",
    )


def opened(limits: StageLimits = LIMITS, **changes: object) -> SessionTable:
    sessions = table(limits)
    sessions.handle(SessionRequested(SessionRequest("s", AUDIO)), 0.0)
    sessions.handle(SegmentRequested("s", segment(**changes)), 0.0)
    return sessions


def kinds(instructions: list[Instruction]) -> list[type[Instruction]]:
    return [type(each) for each in instructions]


def end_error(instructions: list[Instruction]) -> Exception | None:
    ends = [each for each in instructions if isinstance(each, End)]
    assert len(ends) == 1
    return ends[0].error


def stepped(
    sessions: SessionTable, *events: object, awaited: Mapping[SegmentKey, str | None] | None = None
) -> list[Instruction]:
    standing = {key: SegmentStatus(edge, 0) for key, edge in (awaited or {}).items()}
    return sessions.handle(EngineStepped(events, standing), 1.0)  # type: ignore[arg-type]


def test_open_delivers_held_chunks_when_they_came_first() -> None:
    sessions = table()
    assert sessions.handle(chunk(0), 0.0) == []
    assert sessions.handle(chunk(1, end=True), 0.0) == []
    assert sessions.held_bytes > 0
    assert kinds(sessions.handle(SessionRequested(SessionRequest("s", AUDIO)), 1.0)) == [Opened]
    done = sessions.handle(SegmentRequested("s", segment()), 1.0)
    assert kinds(done) == [SegmentOpened, Admit, Feed, Feed]
    assert sessions.held_bytes == 0


def test_held_chunks_are_refused_when_the_session_never_opens() -> None:
    sessions = table()
    sessions.handle(chunk(0), 0.0)
    assert sessions.next_deadline() == 5.0
    assert sessions.handle(TimePassed(), 4.9) == []
    (refusal,) = sessions.handle(TimePassed(), 5.0)
    assert isinstance(refusal, Refuse)
    assert isinstance(refusal.error, DeadlineExceeded)
    assert isinstance(sessions.handle(chunk(1), 6.0)[0], Refuse)
    with pytest.raises(DeadlineExceeded, match=r"within 5 s of its first chunk"):
        sessions.handle(SessionRequested(SessionRequest("s", AUDIO)), 7.0)


def test_held_chunks_are_refused_when_they_fill_the_bound() -> None:
    sessions = table()
    sessions.handle(chunk(0, frames=500), 0.0)
    (refusal,) = sessions.handle(chunk(1, frames=500), 0.0)
    assert isinstance(refusal, Refuse)
    assert isinstance(refusal.error, ResourceExhausted)


def test_chunk_is_delivered_once_when_it_comes_twice() -> None:
    sessions = opened()
    assert kinds(sessions.handle(chunk(0), 0.0)) == [Feed]
    assert sessions.handle(chunk(0), 0.0) == []
    assert kinds(sessions.handle(chunk(1), 0.0)) == [Feed]


def test_session_fails_when_a_chunk_is_missing() -> None:
    sessions = opened()
    done = sessions.handle(chunk(1), 0.0)
    assert kinds(done) == [Release, End]
    assert isinstance(end_error(done), DataLoss)
    assert sessions.session_count == 0


def test_session_fails_when_a_chunk_follows_the_edges_end() -> None:
    sessions = opened()
    sessions.handle(chunk(0, end=True), 0.0)
    assert isinstance(end_error(sessions.handle(chunk(1), 0.0)), DataLoss)


def test_session_fails_when_the_edge_is_not_an_input() -> None:
    sessions = opened()
    wrong = ChunkArrived(structs.replace(chunk(0).chunk, edge="tokens"), "link")
    error = end_error(sessions.handle(wrong, 0.0))
    assert isinstance(error, InvalidArgument)
    assert error.edge == "tokens"


def test_stall_names_the_awaited_edge_when_nothing_comes() -> None:
    sessions = opened()
    stepped(sessions, awaited={KEY: "codes"})
    deadline = sessions.next_deadline()
    assert deadline is not None
    assert deadline <= 31.0
    assert sessions.handle(TimePassed(), 30.9) == []
    assert sessions.next_deadline() == 31.0
    error = end_error(sessions.handle(TimePassed(), 31.0))
    assert isinstance(error, DeadlineExceeded)
    assert error.edge == "codes"
    assert "codes" in error.message


def test_stall_clock_stands_while_the_engine_can_step_or_the_session_is_parked() -> None:
    sessions = opened()
    stepped(sessions, awaited={KEY: None})
    assert sessions.handle(TimePassed(), 1e6) == []
    assert sessions.next_deadline() is None
    sessions.handle(SegmentCancelled("s", 0), 1e6)
    assert sessions.state("s") is State.PARKED
    assert sessions.handle(TimePassed(), 1e6 + 100 * LIMITS.stall_timeout_s) == []


def test_stall_clock_starts_again_when_input_comes() -> None:
    sessions = opened()
    stepped(sessions, awaited={KEY: "codes"})
    sessions.handle(chunk(0), 20.0)
    assert sessions.handle(TimePassed(), 40.0) == []
    assert end_error(sessions.handle(TimePassed(), 50.0)) is not None


def test_segment_fails_when_its_deadline_passes() -> None:
    sessions = opened(deadline_s=2.0)
    stepped(sessions, awaited={KEY: None})
    assert sessions.next_deadline() == 2.0
    assert sessions.handle(TimePassed(), 1.9) == []
    assert isinstance(end_error(sessions.handle(TimePassed(), 2.0)), DeadlineExceeded)


def test_output_is_numbered_and_parked_when_the_segment_completes() -> None:
    sessions = opened()
    tensors = {"samples": np.zeros(8, np.float32), "codes": np.zeros((2, 2), np.uint16)}
    done = stepped(
        sessions,
        Emitted(KEY, "audio", 0, tensors),
        Emitted(KEY, "audio", 8, {}, FinishReason.LENGTH),
        Completed(KEY, FinishReason.LENGTH, 2, 8),
    )
    assert kinds(done) == [Send, Send, Report, Release]
    sent = [each.chunk for each in done if isinstance(each, Send)]
    assert [(each.sequence, each.position, each.segment_finished) for each in sent] == [
        (0, 0, False),
        (1, 8, True),
    ]
    assert sent[1].finish_reason is FinishReason.LENGTH
    assert sessions.state("s") is State.PARKED
    assert sessions.open_segments == 0


def test_completed_before_the_last_edge_ended_is_an_internal_error() -> None:
    sessions = opened()
    assert isinstance(
        end_error(stepped(sessions, Completed(KEY, FinishReason.STOP, 0, 0))), Internal
    )


def test_next_segment_takes_its_early_chunks_and_drops_late_ones() -> None:
    sessions = opened()
    sessions.handle(chunk(0, end=True), 0.0)
    assert sessions.handle(chunk(1, number=1), 0.0) == []
    stepped(
        sessions,
        Emitted(KEY, "audio", 0, {}, FinishReason.STOP),
        Completed(KEY, FinishReason.STOP, 1, 0),
    )
    assert kinds(sessions.handle(SegmentRequested("s", segment(1)), 2.0)) == [
        SegmentOpened,
        Admit,
        Feed,
    ]
    assert sessions.handle(chunk(2, number=0), 2.0) == []
    assert kinds(sessions.handle(chunk(3, number=1), 2.0)) == [Feed]


def test_early_chunks_fail_the_session_when_they_fill_the_bound() -> None:
    sessions = opened()
    sessions.handle(chunk(0, number=1, frames=500), 0.0)
    error = end_error(sessions.handle(chunk(1, number=1, frames=500), 0.0))
    assert isinstance(error, ResourceExhausted)


def test_segment_is_refused_when_it_is_not_the_next_or_one_is_open() -> None:
    sessions = opened()
    assert isinstance(
        end_error(sessions.handle(SegmentRequested("s", segment(2)), 0.0)), FailedPrecondition
    )
    sessions = opened()
    assert isinstance(
        end_error(sessions.handle(SegmentRequested("s", segment(1)), 0.0)), FailedPrecondition
    )


def test_segment_is_refused_when_all_slots_are_taken() -> None:
    sessions = table()
    for name in ("a", "b", "c"):
        sessions.handle(SessionRequested(SessionRequest(name, AUDIO)), 0.0)
    assert kinds(sessions.handle(SegmentRequested("a", segment()), 0.0)) == [SegmentOpened, Admit]
    assert kinds(sessions.handle(SegmentRequested("b", segment()), 0.0)) == [SegmentOpened, Admit]
    error = end_error(sessions.handle(SegmentRequested("c", segment()), 0.0))
    assert isinstance(error, ResourceExhausted)
    assert error.retryable
    sessions.handle(SegmentCancelled("a", 0), 0.0)
    sessions.handle(SessionRequested(SessionRequest("d", AUDIO)), 0.0)
    assert kinds(sessions.handle(SegmentRequested("d", segment()), 0.0)) == [SegmentOpened, Admit]


def test_stream_lost_releases_and_remembers_at_any_moment() -> None:
    for prepare in (lambda t: None, lambda t: t.handle(SegmentRequested("s", segment()), 0.0)):
        sessions = table()
        sessions.handle(SessionRequested(SessionRequest("s", AUDIO)), 0.0)
        prepare(sessions)
        done = sessions.handle(StreamLost("s"), 0.0)
        assert kinds(done)[-1] is End
        assert end_error(done) is None
        assert sessions.session_count == sessions.open_segments == 0
        assert sessions.handle(StreamLost("s"), 0.0) == []
        assert isinstance(sessions.handle(chunk(0), 0.0)[0], Refuse)


def test_session_finishes_after_its_segment_when_the_client_is_done() -> None:
    sessions = opened()
    assert sessions.handle(ClientDone("s"), 0.0) == []
    done = stepped(
        sessions,
        Emitted(KEY, "audio", 0, {}, FinishReason.STOP),
        Completed(KEY, FinishReason.STOP, 0, 0),
    )
    assert kinds(done) == [Send, Report, Release, End]
    assert isinstance(done[0], Send)
    assert done[0].chunk.finished


def test_failed_event_ends_only_its_session() -> None:
    sessions = table()
    for name in ("a", "b"):
        sessions.handle(SessionRequested(SessionRequest(name, AUDIO)), 0.0)
        sessions.handle(SegmentRequested(name, segment()), 0.0)
    error = Internal("broken")
    assert end_error(stepped(sessions, Failed(SegmentKey("a", 0), error))) is error
    assert error.stage == "code2wav"
    assert sessions.state("b") is State.OPEN


def test_link_lost_fails_only_sessions_that_still_need_it() -> None:
    sessions = opened()
    sessions.handle(chunk(0), 0.0)
    assert sessions.handle(LinkLost("other"), 0.0) == []
    error = end_error(sessions.handle(LinkLost("link"), 0.0))
    assert isinstance(error, Unavailable)
    assert error.edge == "codes"
    sessions = opened()
    sessions.handle(chunk(0, end=True), 0.0)
    assert sessions.handle(LinkLost("link"), 0.0) == []


def test_destination_lost_fails_sessions_that_send_there() -> None:
    sessions = SessionTable(StagePlan.of(PIPELINE, "talker", NEUTRAL_SAMPLING, LIMITS))
    for name, address in (("a", "here:1"), ("b", "there:2")):
        sessions.handle(
            SessionRequested(SessionRequest(name, {"codes": (Destination(address),)})), 0.0
        )
        sessions.handle(SegmentRequested(name, segment()), 0.0)
    assert (
        end_error(sessions.handle(DestinationLost("here:1", Unavailable("gone")), 0.0)) is not None
    )
    assert sessions.state("a") is None
    assert sessions.state("b") is State.OPEN


def test_whole_delivery_is_taken_from_the_segment() -> None:
    sessions = SessionTable(StagePlan.of(PIPELINE, "talker", NEUTRAL_SAMPLING, LIMITS))
    sessions.handle(SessionRequested(SessionRequest("s", {"codes": (Destination("x:1"),)})), 0.0)
    sessions.handle(SegmentRequested("s", segment(delivery={"codes": Delivery.WHOLE})), 0.0)
    frame = {"codes": np.zeros((1, 2), np.uint16)}
    assert stepped(sessions, Emitted(KEY, "codes", 0, frame)) == []
    done = stepped(sessions, Emitted(KEY, "codes", 1, frame, FinishReason.STOP))
    assert kinds(done) == [Send]
    assert isinstance(done[0], Send)
    assert len(done[0].chunk.tensors["codes"]) == 2


def test_unwanted_client_edge_goes_nowhere() -> None:
    sessions = opened(outputs=frozenset({"text"}))
    assert stepped(sessions, Emitted(KEY, "audio", 0, {}, FinishReason.STOP)) == []


def test_open_raises_when_a_route_names_no_output() -> None:
    with pytest.raises(InvalidArgument, match="text"):
        table().handle(SessionRequested(SessionRequest("s", {"text": (Destination(),)})), 0.0)


def test_output_on_an_edge_that_goes_nowhere_is_dropped() -> None:
    sessions = table(role="thinker")
    sessions.handle(SessionRequested(SessionRequest("s", {})), 0.0)
    sessions.handle(SegmentRequested("s", segment()), 0.0)
    assert stepped(sessions, Emitted(KEY, "text", 0, {"ids": np.zeros(1, np.int32)})) == []
    assert sessions.state("s") is State.OPEN
