"""A step launched before the last one is read: in what order, and what becomes of those who end.

The device here makes a copy only when somebody waits for it, so that what is read too
early is wrong, and what is not read is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from antiphon.runtime.engine import Emitted, EngineEvent, Failed
from antiphon.runtime.session.instructions import Admit, EngineCommand, Feed, Limit, Release
from antiphon.runtime.stepping.rounds import EngineRounds
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen3_omni.talker.engine import TalkerEngine
from antiphon_services.qwen3_omni.talker.prompt import TalkerPrompt
from antiphon_services.qwen3_omni.talker.talker_segment import TalkerSegment
from antiphon_testkit.drive_engine import SegmentOutput, run_segment
from antiphon_testkit.late_copies import LateCopies
from tests.unit.services.qwen3_omni.talker.talker_lab import (
    GREEDY,
    SAMPLED,
    Lab,
    Turn,
    codes_of,
    make_late_engine,
)

KEY, OTHER_KEY = SegmentKey("one", 0), SegmentKey("other", 0)


@pytest.fixture
def alone(small: Lab) -> tuple[TalkerEngine, LateCopies]:
    """An engine with a single slot."""
    return make_late_engine(small, slots=1)


def join(engine: TalkerEngine, turn: Turn, key: SegmentKey = KEY) -> None:
    engine.admit(key, turn.settings)
    for chunk in turn.chunks():
        engine.accept(key, chunk)


def frames_of(events: Sequence[EngineEvent], key: SegmentKey = KEY) -> list[list[int]]:
    return [
        row
        for event in events
        if isinstance(event, Emitted) and event.key == key and event.tensors
        for row in event.tensors["codes"].tolist()
    ]


def check_alone(lab: Lab, engine: TalkerEngine, turn: Turn) -> None:
    """A turn on an engine with whatever was left there."""
    output = run_segment(engine, turn.settings, turn.chunks(), SegmentKey("next", 0))
    assert codes_of(lab, output).tolist() == lab.reference(turn).codes.tolist()


def stopping(lab: Lab) -> Turn:
    """A turn whose speech ends by itself, after some frames."""
    limit = replace(GREEDY, max_tokens=80)
    return lab.decided(
        turn
        for seed in count(20)
        if (reference := lab.reference(turn := lab.turn(seed, sampling=limit))).reason
        is FinishReason.STOP
        and len(reference.codes) > 1
    )


# -- what comes when -----------------------------------------------------------------------


def test_next_step_is_launched_when_the_last_has_not_been_read(
    small: Lab, alone: tuple[TalkerEngine, LateCopies]
) -> None:
    (engine, copies), turn = alone, small.turn(2)
    expected = small.reference(turn).codes.tolist()
    join(engine, turn)
    assert engine.step() == []
    assert (copies.begun, copies.made) == (1, 0)
    for frame in range(4):
        assert frames_of(engine.step()) == [expected[frame]]
        assert (copies.begun, copies.made) == (frame + 2, frame + 1)


def test_frames_leave_before_a_launch_when_they_are_there(
    small: Lab, alone: tuple[TalkerEngine, LateCopies]
) -> None:
    (engine, copies), turn = alone, small.turn(2)
    join(engine, turn)
    engine.step()
    copies.make_one()
    assert frames_of(engine.step()) == small.reference(turn).codes[:1].tolist()
    assert copies.begun == 1
    assert engine.step() == []
    assert copies.begun == 2


def test_frame_is_read_when_there_is_nothing_to_launch(
    small: Lab, alone: tuple[TalkerEngine, LateCopies]
) -> None:
    (engine, copies), turn = alone, small.turn(2)
    engine.admit(KEY, turn.settings)
    first, second, *_ = turn.token_chunks(per_chunk=1)
    for chunk in (*turn.prompt_chunks(), first):
        engine.accept(KEY, chunk)
    for chunk, frame in ((second, 0), (None, 1)):
        assert engine.awaited_edge(KEY) is None
        assert engine.step() == []
        # The next text has not come, and the frame is in flight.
        assert engine.awaited_edge(KEY) is None
        assert frames_of(engine.step()) == [small.reference(turn).codes[frame].tolist()]
        assert engine.awaited_edge(KEY) == "tokens"
        if chunk is not None:
            engine.accept(KEY, chunk)
    assert copies.begun == copies.made == 2


@pytest.mark.parametrize("limit", [1, 2, 6])
def test_nothing_is_launched_in_vain_when_the_limit_ends_speech(
    small: Lab, alone: tuple[TalkerEngine, LateCopies], limit: int
) -> None:
    (engine, copies), turn = alone, small.turn(2)
    limited = replace(turn.sampling, max_tokens=limit)
    output = run_segment(engine, replace(turn.settings, sampling=limited), turn.chunks())
    expected = small.reference(turn).codes[: limit - 1]
    assert codes_of(small, output).tolist() == expected.tolist()
    assert output.finish_reason("codes") is FinishReason.LENGTH
    assert copies.begun == copies.made == limit


# -- who ends with a draw in flight --------------------------------------------------------


def test_codes_are_right_when_the_slot_was_that_of_speech_that_ended(
    small: Lab, alone: tuple[TalkerEngine, LateCopies]
) -> None:
    (engine, copies), turn = alone, stopping(small)
    check_alone(small, engine, turn)
    # It was not known on the host that speech had ended.
    assert copies.begun == copies.made + 1
    check_alone(small, engine, small.turn(2))
    sampled = replace(small.turn(3), sampling=replace(SAMPLED, repetition_penalty=1.5))
    plain = run_segment(small.stage.engine, sampled.settings, sampled.chunks())
    output = run_segment(engine, sampled.settings, sampled.chunks())
    assert codes_of(small, output).tolist() == codes_of(small, plain).tolist()


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_codes_are_right_when_the_slot_was_that_of_one_who_left(
    small: Lab, alone: tuple[TalkerEngine, LateCopies], steps: int
) -> None:
    engine, copies = alone
    join(engine, small.turn(3))
    for _ in range(steps):
        engine.step()
    engine.release(KEY)
    assert copies.begun == copies.made + 1
    check_alone(small, engine, small.turn(2))


def test_others_go_on_when_one_leaves_with_a_draw_in_flight(small: Lab) -> None:
    engine, _ = make_late_engine(small, slots=2)
    staying, leaving = small.turn(2), small.turn(3)
    join(engine, staying)
    join(engine, leaving, OTHER_KEY)
    events = [*engine.step(), *engine.step()]
    engine.release(OTHER_KEY)
    late: list[EngineEvent] = []
    while engine.awaited_edge(KEY) is None and KEY not in {
        event.key for event in late if isinstance(event, Emitted) and event.finish_reason
    }:
        late += engine.step()
    assert {event.key for event in late} == {KEY}
    assert frames_of([*events, *late]) == small.reference(staying).codes.tolist()


@pytest.mark.parametrize("cancelled", [False, True])
def test_codes_are_right_when_the_slot_held_no_numbers_that_were_read(
    small: Lab, alone: tuple[TalkerEngine, LateCopies], cancelled: bool
) -> None:
    (engine, copies), turn = alone, small.turn(1, audio=4)
    join(engine, replace(turn, rows=np.full_like(turn.rows, np.nan)))
    assert engine.step() == []
    if not cancelled:
        (failure,) = engine.step()
        assert isinstance(failure, Failed)
        assert engine.step() == []
    assert copies.begun == (1 if cancelled else 2)
    engine.release(KEY)
    check_alone(small, engine, small.turn(2))


def test_positions_are_doubtful_when_no_finite_logits_came_after_them(small: Lab) -> None:
    segment = TalkerSegment(KEY, "ethan", GREEDY, TalkerPrompt(small.special, 1000, 8))
    found = []
    for prefilled, launched, shown in ((9, 0, 0), (9, 2, 0), (9, 2, 1), (9, 2, 2)):
        segment.prefilled, segment.launched, segment.shown = prefilled, launched, shown
        found.append(segment.doubtful)
    assert found == [range(9), range(11), range(10, 11), range(11, 11)]


# -- who is held ---------------------------------------------------------------------------


class Runtime:
    """The runtime's rounds of an engine, with what came of them."""

    def __init__(self, engine: TalkerEngine) -> None:
        self._rounds = EngineRounds(engine, {"codes": "codes"})
        self.outputs = {KEY: SegmentOutput(), OTHER_KEY: SegmentOutput()}

    def run(self, *commands: EngineCommand) -> None:
        """Until nothing can step."""
        waiting = list(commands)
        while waiting or self._rounds.steppable:
            batch = self._rounds.run(waiting)
            assert batch.error is None
            waiting = []
            for event in batch.events:
                assert not isinstance(event, Failed)
                output = self.outputs[event.key]
                if isinstance(event, Emitted):
                    output.emitted.append(event)
                else:
                    output.completed = event
                    waiting.append(Release(event.key))

    def frames(self, key: SegmentKey) -> list[list[int]]:
        return frames_of(self.outputs[key].emitted, key)


def starting(turn: Turn, key: SegmentKey) -> list[EngineCommand]:
    return [Admit(key, turn.settings), *(Feed(key, chunk) for chunk in turn.chunks())]


def test_segment_stops_exactly_where_it_is_held_when_a_draw_is_in_flight(small: Lab) -> None:
    engine, copies = make_late_engine(small, slots=2)
    turn, other = small.turn(2), small.turn(3)
    expected = small.reference(turn).codes.tolist()
    runtime = Runtime(engine)
    runtime.run(Limit(KEY, "codes", 3), *starting(turn, KEY), Limit(KEY, "codes", 3))
    assert runtime.frames(KEY) == expected[:3]
    # The fourth is in flight; others do not wait for it, nor does it cost them anything.
    runtime.run(*starting(other, OTHER_KEY))
    assert codes_of(small, runtime.outputs[OTHER_KEY]).tolist() == (
        small.reference(other).codes.tolist()
    )
    assert runtime.frames(KEY) == expected[:3]
    for limit in (4, 5, 8):
        runtime.run(Limit(KEY, "codes", limit))
        assert runtime.frames(KEY) == expected[:limit]
    # It has never had more than one.
    assert copies.begun <= copies.made + 1
    runtime.run(Limit(KEY, "codes", 1000))
    assert codes_of(small, runtime.outputs[KEY]).tolist() == expected


def test_end_comes_when_the_segment_is_not_held_any_more(
    small: Lab, alone: tuple[TalkerEngine, LateCopies]
) -> None:
    (engine, _), turn = alone, stopping(small)
    frames = len(small.reference(turn).codes)
    runtime = Runtime(engine)
    runtime.run(*starting(turn, KEY)[:1], Limit(KEY, "codes", frames), *starting(turn, KEY)[1:])
    assert runtime.frames(KEY) == small.reference(turn).codes.tolist()
    assert runtime.outputs[KEY].completed is None
    runtime.run(Limit(KEY, "codes", frames + 1))
    assert codes_of(small, runtime.outputs[KEY]).tolist() == small.reference(turn).codes.tolist()


def test_slot_is_right_for_the_next_when_one_leaves_who_was_held(
    small: Lab, alone: tuple[TalkerEngine, LateCopies]
) -> None:
    (engine, _), turn = alone, small.turn(3)
    runtime = Runtime(engine)
    admit, *feeds = starting(turn, KEY)
    runtime.run(admit, Limit(KEY, "codes", 2), *feeds)
    assert len(runtime.frames(KEY)) == 2
    runtime.run(Release(KEY))
    check_alone(small, engine, small.turn(2))
