"""The engine of decoders that compute each segment by itself: turns, bounds, faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from antiphon.errors import InvalidArgument, ResourceExhausted
from antiphon.runtime.engine import (
    Completed,
    Emitted,
    EngineEvent,
    Failed,
    InputChunk,
    SegmentSettings,
)
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.vocoder.least_served import LeastServedEngine, ServedSegment
from antiphon_services.vocoder.received_codes import ReceivedCodes
from antiphon_services.vocoder.stage import NO_SAMPLING

CODES, AUDIO = "codes", "audio"
SLOTS, STEP_WORK = 3, 10
A, B, C = (SegmentKey(name, 0) for name in "abc")
FAULT = 7
"""A code whose part raises."""


@dataclass(slots=True, kw_only=True)
class CountedSegment(ServedSegment):
    """A part is a code; its work is the code's value, and its samples are as many."""

    received: ReceivedCodes
    log: list[str]
    sent: int = 0
    closed: int = 0

    @property
    def all_sent(self) -> bool:
        return self.sent == self.received.count

    def advance(self) -> list[EngineEvent]:
        if self.closed:
            # Not an `Exception`, which the engine would report as a fault of the segment.
            pytest.fail("a closed segment advances")
        self.log.append(self.key.session_id)
        work = int(self.received.codes[self.sent])
        if work == FAULT:
            raise InvalidArgument("codes: no such part")
        self.served, self.sent = self.served + work, self.sent + 1
        return self.emit(np.zeros(work, np.float32))

    def close(self) -> None:
        self.closed += 1


@dataclass(slots=True, kw_only=True)
class EagerSegment(CountedSegment):
    """One that does not wait for its last code."""

    @property
    def has_part(self) -> bool:
        return not self.all_sent


class CountedEngine(LeastServedEngine):
    """Keeps its segments, and the order of their parts."""

    def __init__(self, kind: type[CountedSegment] = CountedSegment) -> None:
        super().__init__("counter", slots=SLOTS, step_work=STEP_WORK)
        self.kind, self.log = kind, list[str]()
        self.opened = dict[SegmentKey, CountedSegment]()

    def open(self, key: SegmentKey, settings: SegmentSettings) -> CountedSegment:
        self.opened[key] = self.kind(
            key=key,
            audio=AUDIO,
            wanted=AUDIO in settings.outputs,
            received=ReceivedCodes(CODES, None, 100, 50),
            log=self.log,
        )
        return self.opened[key]

    def ask(self, key: SegmentKey, codes: Sequence[int], *, end: bool = True) -> None:
        """Admit a segment and pass its codes."""
        self.admit(key, WANTED)
        reason = FinishReason.STOP if end else None
        part = {CODES: np.array(codes, np.uint16)}
        self.accept(key, InputChunk(CODES, 0, part, end, reason))


WANTED = SegmentSettings("", NO_SAMPLING, frozenset({AUDIO}))


def test_the_least_served_segment_is_next() -> None:
    engine = CountedEngine()
    engine.ask(A, [6, 1, 1])
    engine.ask(B, [2, 2, 1])
    engine.step()
    assert "".join(engine.log) == "abb", "A and B have received 6 and 4"
    engine.ask(C, [3, 3, 4])
    engine.step()
    assert "".join(engine.log[3:]) == "ccbac", "C catches up first, and A precedes C at 6 each"


def test_a_step_starts_no_part_beyond_its_work() -> None:
    engine = CountedEngine()
    engine.ask(A, [4, 4, 4, 4])
    engine.step()
    assert len(engine.log) == 3, "12 units of 10"
    engine.step()
    assert len(engine.log) == 4


def test_the_end_follows_the_last_samples_in_one_step() -> None:
    engine = CountedEngine()
    engine.ask(A, [4, 3])
    assert engine.awaited_edge(A) is None
    events = engine.step()
    assert [each.position for each in events if isinstance(each, Emitted)] == [0, 4, 7]
    assert isinstance(events[2], Emitted)
    assert events[2].finish_reason is FinishReason.STOP
    assert events[3] == Completed(A, FinishReason.STOP, 2, 7)
    assert engine.step() == []


def test_a_fault_ends_its_segment_only() -> None:
    engine = CountedEngine()
    engine.ask(A, [FAULT, 1])
    engine.ask(B, [4])
    events = engine.step()
    assert [each.key for each in events if isinstance(each, Failed)] == [A]
    assert [each.key for each in events if isinstance(each, Completed)] == [B]
    assert engine.opened[A].closed == 1
    assert engine.step() == [], "the failed segment has no more parts and no end"


def test_whole_answers_wait_for_their_last_code_and_streams_do_not() -> None:
    for kind, parts in ((CountedSegment, 0), (EagerSegment, 2)):
        engine = CountedEngine(kind)
        engine.ask(A, [1, 2], end=False)
        engine.step()
        assert len(engine.log) == parts
        assert engine.awaited_edge(A) == CODES
        engine.accept(A, InputChunk(CODES, 2, {}, True, FinishReason.LENGTH))
        assert engine.awaited_edge(A) is None
        assert engine.step()[-1] == Completed(A, FinishReason.LENGTH, 2, 3)


def test_unwanted_audio_costs_nothing_and_ends() -> None:
    engine = CountedEngine()
    engine.admit(A, SegmentSettings("", NO_SAMPLING, frozenset()))
    part = {CODES: np.array([1, 2], np.uint16)}
    engine.accept(A, InputChunk(CODES, 0, part, True, FinishReason.STOP))
    assert engine.step() == [Completed(A, FinishReason.STOP, 2, 0)]
    assert engine.log == []


def test_held_segments_neither_advance_nor_end() -> None:
    engine = CountedEngine()
    engine.ask(A, [1])
    engine.ask(B, [])
    assert engine.step({A, B}) == []
    assert [each.key for each in engine.step({A}) if isinstance(each, Completed)] == [B]


def test_release_frees_the_slot_and_closes_the_segment() -> None:
    engine = CountedEngine()
    for key in (A, B, C):
        engine.ask(key, [1, 2])
    with pytest.raises(ResourceExhausted, match="counter: all 3 slots"):
        engine.admit(SegmentKey("d", 0), WANTED)
    engine.step()
    assert engine.so_far(A).finish_reason is FinishReason.CANCELLED
    engine.release(B)
    assert engine.opened[B].closed == 1
    engine.admit(SegmentKey("d", 0), WANTED)


def test_codes_of_each_group_have_a_bound() -> None:
    codes = ReceivedCodes(CODES, 2, (3, 9), 4, "frame")
    codes.accept(InputChunk(CODES, 0, {CODES: np.array([[2, 8]], np.uint16)}))
    with pytest.raises(InvalidArgument, match=r"must be below \(3, 9\), got 3"):
        codes.accept(InputChunk(CODES, 1, {CODES: np.array([[3, 8]], np.uint16)}))
    with pytest.raises(InvalidArgument, match="more than 4 frames"):
        codes.accept(InputChunk(CODES, 1, {CODES: np.zeros((4, 2), np.uint16)}))
    np.testing.assert_array_equal(codes.codes, [[2, 8]])
