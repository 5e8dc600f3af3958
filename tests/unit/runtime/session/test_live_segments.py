"""A segment whose input comes while it is recorded: when it takes a slot, and which clocks run."""

from __future__ import annotations

import numpy as np

from antiphon.errors import DeadlineExceeded, ResourceExhausted
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import Completed
from antiphon.runtime.session.facts import (
    ChunkArrived,
    ClientDone,
    EngineStepped,
    InputFinished,
    SegmentCancelled,
    SegmentRequested,
    SegmentStatus,
    SessionRequested,
    TimePassed,
)
from antiphon.runtime.session.instructions import (
    Admit,
    Destination,
    End,
    Feed,
    Instruction,
    Release,
    Report,
    SegmentOpened,
    SegmentRefused,
)
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest, StageLimits, StagePlan
from antiphon.runtime.session.states import State
from antiphon.runtime.session.table import SessionTable
from antiphon.values.chunk import Chunk
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING

STALL_S, SPEAKING_S, IDLE_S = 5.0, 30.0, 100.0
LIMITS = StageLimits(
    slots=1,
    stall_timeout_s=STALL_S,
    hold_timeout_s=3.0,
    hold_bytes=10_000,
    idle_session_timeout_s=IDLE_S,
    live_input_timeout_s=SPEAKING_S,
)
OUTPUT = {"thinker": "text", "code2wav": "audio"}


def stage(role: str) -> SessionTable:
    return SessionTable(StagePlan.of(PIPELINE, role, NEUTRAL_SAMPLING, LIMITS))


def ask(
    table: SessionTable,
    name: str = "s",
    number: int = 0,
    *,
    live: bool = True,
    output: str = "audio",
    deadline_s: float = 0.0,
) -> list[Instruction]:
    if not number:
        table.handle(SessionRequested(SessionRequest(name, {output: (Destination(),)})), 0.0)
    request = SegmentRequest(
        number, SamplingRequest(), "", frozenset({output}), {}, live=live, deadline_s=deadline_s
    )
    return list(table.handle(SegmentRequested(name, request), 0.0))


def frame(sequence: int = 0, segment: int = 0, name: str = "s") -> ChunkArrived:
    codes = np.zeros((1, 16), np.uint16)
    chunk = Chunk(name, "codes", segment=segment, sequence=sequence, tensors={"codes": codes})
    return ChunkArrived(chunk, "")


def said(sequence: int = 0) -> ChunkArrived:
    messages = np.zeros(2, np.uint8)
    chunk = Chunk("s", "input", sequence=sequence, tensors={"messages": messages})
    return ChunkArrived(chunk, "")


def kinds(instructions: list[Instruction]) -> list[type]:
    return [type(each) for each in instructions]


def test_live_segment_takes_a_slot_with_its_first_chunk() -> None:
    table = stage("code2wav")
    assert kinds(ask(table)) == [SegmentOpened]
    assert table.open_segments == 0
    assert kinds(ask(table, "other", live=False))[1:] == [Admit]
    table.handle(SegmentCancelled("other", 0), 1.0)
    admit, feed = table.handle(frame(), 1.0)
    assert isinstance(admit, Admit)
    assert admit.settings.live
    assert isinstance(feed, Feed)
    assert table.open_segments == 1
    assert kinds(table.handle(frame(1), 2.0)) == [Feed]


def test_live_segment_whose_first_chunk_finds_no_slot_leaves_the_session() -> None:
    table = stage("code2wav")
    ask(table)
    ask(table, "other", live=False)
    (refused,) = table.handle(frame(), 1.0)
    assert isinstance(refused, SegmentRefused)
    assert isinstance(refused.error, ResourceExhausted)
    assert refused.error.stage == "code2wav"
    assert table.state("s") is State.PARKED
    assert table.handle(frame(1), 1.0) == []
    assert table.handle(InputFinished("s", 0), 1.0) == []
    table.handle(SegmentCancelled("other", 0), 2.0)
    assert kinds(ask(table, number=1)) == [SegmentOpened]
    assert kinds(table.handle(frame(2, segment=1), 2.0)) == [Admit, Feed]


def test_refused_live_segment_ends_a_session_whose_client_is_done() -> None:
    table = stage("code2wav")
    ask(table)
    ask(table, "other", live=False)
    table.handle(ClientDone("s"), 1.0)
    refused, end = table.handle(frame(), 2.0)
    assert isinstance(refused, SegmentRefused)
    assert end == End("s", None)


def test_live_segment_whose_chunk_came_early_needs_its_slot_at_once() -> None:
    table = stage("code2wav")
    ask(table, live=False)
    assert table.handle(frame(0, segment=1), 1.0) == []
    table.handle(SegmentCancelled("s", 0), 1.0)
    assert kinds(ask(table, number=1)) == [SegmentOpened, Admit, Feed]


def test_cancelled_live_segment_that_has_no_slot_is_reported_at_once() -> None:
    table = stage("code2wav")
    ask(table)
    (report,) = table.handle(SegmentCancelled("s", 0), 1.0)
    assert isinstance(report, Report)
    assert (report.finish_reason, report.input_positions) == (FinishReason.CANCELLED, 0)
    assert table.state("s") is State.PARKED


def test_cancelled_live_segment_that_has_a_slot_is_released() -> None:
    table = stage("code2wav")
    ask(table)
    table.handle(frame(), 1.0)
    key = SegmentKey("s", 0)
    assert table.handle(SegmentCancelled("s", 0), 1.0) == [Release(key, cancelled=True)]
    freed = Completed(key, FinishReason.CANCELLED, 1, 0)
    assert kinds(list(table.handle(EngineStepped(released=(freed,)), 2.0))) == [Report]


def test_stage_that_hears_waits_longer_while_its_user_pauses() -> None:
    table = stage("thinker")
    ask(table, output="text")
    table.handle(said(), 1.0)
    table.handle(EngineStepped(standing={SegmentKey("s", 0): SegmentStatus("input", 1)}), 1.0)
    assert table.handle(TimePassed(), 1.0 + SPEAKING_S - 0.1) == []
    # Each piece starts the clock again.
    table.handle(said(1), 30.0)
    assert table.handle(TimePassed(), 30.0 + SPEAKING_S - 0.1) == []
    _, end = table.handle(TimePassed(), 30.0 + SPEAKING_S)
    assert isinstance(end, End)
    assert isinstance(end.error, DeadlineExceeded)
    assert end.error.edge == "input"
    assert "live_input_timeout_s" in end.error.message


def test_stage_that_does_not_hear_waits_for_as_long_as_it_would_without_a_segment() -> None:
    table = stage("code2wav")
    ask(table)
    assert table.handle(TimePassed(), IDLE_S - 0.1) == []
    (end,) = table.handle(TimePassed(), IDLE_S)
    assert isinstance(end, End)
    assert isinstance(end.error, DeadlineExceeded)


def test_stall_clock_begins_when_the_input_is_finished() -> None:
    table = stage("code2wav")
    ask(table)
    assert table.handle(InputFinished("s", 0), 50.0) == []
    assert table.handle(TimePassed(), 50.0 + STALL_S - 0.1) == []
    (end,) = table.handle(TimePassed(), 50.0 + STALL_S)
    assert isinstance(end, End)
    assert isinstance(end.error, DeadlineExceeded)
    assert end.error.edge == "codes"


def test_deadline_counts_from_the_end_of_the_input() -> None:
    table = stage("thinker")
    ask(table, output="text", deadline_s=10.0)
    table.handle(said(), 1.0)
    assert table.handle(TimePassed(), 20.0) == []
    assert kinds(list(table.handle(InputFinished("s", 0), 20.0))) == [Feed]
    table.handle(EngineStepped(standing={SegmentKey("s", 0): SegmentStatus(None, 2)}), 20.0)
    assert table.handle(TimePassed(), 29.9) == []
    _, end = table.handle(TimePassed(), 30.0)
    assert isinstance(end, End)
    assert isinstance(end.error, DeadlineExceeded)
    assert "deadline" in end.error.message
