"""Tokens that come faster than a message is worth share one; none waits longer than the pace."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from antiphon.errors import DeadlineExceeded
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import Completed, Emitted
from antiphon.runtime.session.facts import (
    EngineStepped,
    SegmentRequested,
    SegmentStatus,
    SessionFaulted,
    SessionRequested,
    TimePassed,
)
from antiphon.runtime.session.instructions import Destination, End, Instruction, Report, Send
from antiphon.runtime.session.output_edge import OutputEdge, Piece
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest, StageLimits, StagePlan
from antiphon.runtime.session.table import SessionTable
from antiphon.values.chunk import Chunk, Tensors
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import Delivery, FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING

TEXT = PIPELINE.edge("text")
TALKER = "talker:1"
KEY = SegmentKey("s", 0)
LIMITS = StageLimits(slots=2, stall_timeout_s=30.0, hold_timeout_s=5.0, hold_bytes=1000)
TURN = SegmentRequest(0, SamplingRequest(), "", frozenset({"text"}), {})


def ids(*values: int) -> Tensors:
    return {"ids": np.array(values, np.int32)}


def carried(pieces: list[Piece] | list[Chunk]) -> list[list[int]]:
    return [piece.tensors["ids"].tolist() if piece.tensors else [] for piece in pieces]


def paced(delivery: Delivery = Delivery.STREAM, pace_s: float = 1.0) -> OutputEdge:
    return OutputEdge(replace(TEXT, pace_s=pace_s), delivery, PIPELINE.chunk_policy)


def test_the_first_goes_at_once_and_what_comes_too_soon_goes_together() -> None:
    outlet = paced()
    assert carried(outlet.push(0, ids(5), None, 10.0)) == [[5]]
    assert outlet.due_at is None
    assert outlet.push(1, ids(6), None, 10.2) == []
    assert outlet.push(2, ids(7, 8), None, 10.9) == []
    assert outlet.due_at == 11.0
    assert outlet.release_due(10.5) == []
    (piece,) = outlet.release_due(11.0)
    assert (piece.position, carried([piece])) == (1, [[6, 7, 8]])
    assert outlet.due_at is None
    assert outlet.release_due(99.0) == []


def test_what_comes_after_the_pace_takes_what_waits_with_it() -> None:
    outlet = paced()
    outlet.push(0, ids(5), None, 10.0)
    outlet.push(1, ids(6), None, 10.5)
    assert carried(outlet.push(2, ids(7), None, 11.25)) == [[6, 7]]
    assert outlet.push(3, ids(8), None, 11.5) == []
    assert outlet.due_at == 12.25


def test_the_end_never_waits() -> None:
    outlet = paced()
    outlet.push(0, ids(5), None, 10.0)
    outlet.push(1, ids(6), None, 10.1)
    (piece,) = outlet.push(2, {}, FinishReason.STOP, 10.2)
    assert carried([piece]) == [[6]]
    assert piece.finish_reason is FinishReason.STOP
    assert outlet.drained
    assert outlet.due_at is None


def test_slow_tokens_and_whole_delivery_know_no_pace() -> None:
    slow = paced()
    for at in range(5):
        assert len(slow.push(at, ids(at), None, 10.0 + at)) == 1
    whole = paced(Delivery.WHOLE)
    for at in range(5):
        assert whole.push(at, ids(at), None, 10.0) == []
    assert whole.due_at is None
    assert carried(whole.push(5, {}, FinishReason.STOP, 10.0)) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("early_s", [0.0, 0.0004])
def test_a_clock_that_is_a_little_early_is_not_asked_again(early_s: float) -> None:
    outlet = paced()
    outlet.push(0, ids(5), None, 10.0)
    outlet.push(1, ids(6), None, 10.1)
    assert len(outlet.release_due(11.0 - early_s)) == 1


def thinker(turn: SegmentRequest = TURN, *more: Destination) -> SessionTable:
    """With an open segment whose text goes to the client and whose tokens go to the talker.

    Text also goes to `more` destinations.
    """
    table = SessionTable(StagePlan.of(PIPELINE, "thinker", NEUTRAL_SAMPLING, LIMITS))
    routes = {"text": (Destination(), *more), "tokens": (Destination(TALKER),)}
    table.handle(SessionRequested(SessionRequest("s", routes)), 0.0)
    table.handle(SegmentRequested("s", turn), 0.0)
    return table


def emit(table: SessionTable, at: int, now: float) -> list[Instruction]:
    events = [Emitted(KEY, edge, at, ids(at)) for edge in ("text", "tokens")]
    return table.handle(EngineStepped(events, {KEY: SegmentStatus(None, 0)}), now)


def sent(done: list[Instruction], address: str = "") -> list[Chunk]:
    return [
        each.chunk
        for each in done
        if isinstance(each, Send) and each.destination == Destination(address)
    ]


def test_table_wakes_for_what_waits_and_sends_it_on_every_edge() -> None:
    table = thinker()
    first = emit(table, 0, 10.0)
    assert carried(sent(first)) == carried(sent(first, TALKER)) == [[0]]
    assert not [
        each for at in (1, 2, 3) for each in emit(table, at, 10.0) if isinstance(each, Send)
    ]
    due = table.next_deadline()
    assert due is not None
    assert math.isclose(due, 10.0 + TEXT.pace_s)
    done = table.handle(TimePassed(), due)
    for address in ("", TALKER):
        (chunk,) = sent(done, address)
        assert (chunk.position, chunk.sequence) == (1, 1)
        assert carried([chunk]) == [[1, 2, 3]]
    later = table.next_deadline()
    assert later is None or later > due + TEXT.pace_s


def test_every_destination_receives_every_piece() -> None:
    done = emit(thinker(TURN, Destination("other:1")), 0, 10.0)
    assert carried(sent(done)) == carried(sent(done, "other:1")) == [[0]]


def test_output_that_is_due_at_the_deadline_is_sent_before_the_session_ends() -> None:
    table = thinker(replace(TURN, deadline_s=15.0))
    for at in range(3):
        emit(table, at, 10.0)
    done = table.handle(TimePassed(), 15.0)
    assert [type(each) for each in done if isinstance(each, End | Send)] == [Send, Send, End]
    assert carried(sent(done)) == carried(sent(done, TALKER)) == [[1, 2]]


def test_segment_ends_with_all_that_waited() -> None:
    table = thinker()
    for at in range(3):
        emit(table, at, 10.0)
    ends = [Emitted(KEY, edge, 3, {}, FinishReason.STOP) for edge in ("text", "tokens")]
    completed = Completed(KEY, FinishReason.STOP, 4, 3)
    done = table.handle(EngineStepped([*ends, completed]), 10.001)
    assert carried(sent(done)) == carried(sent(done, TALKER)) == [[1, 2]]
    assert any(isinstance(each, Report) for each in done)
    assert table.handle(TimePassed(), 60.0) == []
    assert table.next_deadline() == 10.001 + LIMITS.idle_session_timeout_s


def test_nothing_of_a_failed_segment_is_sent_later() -> None:
    table = thinker()
    for at in range(3):
        emit(table, at, 10.0)
    done = table.handle(SessionFaulted("s", DeadlineExceeded("too late")), 0.0)
    assert [type(each) for each in done if isinstance(each, End | Send)] == [End]
    assert table.next_deadline() is None
    assert table.handle(TimePassed(), 20.0) == []
