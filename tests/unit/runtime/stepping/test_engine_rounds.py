"""What a round tells of the time that the engine spent, and of how its segments stand."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.runtime.session.facts import SegmentStatus
from antiphon.runtime.session.instructions import Admit, EngineCommand, Feed, Release
from antiphon.runtime.stepping.mailbox import EngineMailbox
from antiphon.runtime.stepping.rounds import EngineRounds
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING, FakeEngine

ONE, OTHER = SegmentKey("one", 0), SegmentKey("other", 0)
SETTINGS = SegmentSettings("", NEUTRAL_SAMPLING, frozenset({"audio"}))


@pytest.fixture
def rounds() -> EngineRounds:
    return EngineRounds(FakeEngine(), {"audio": "samples"})


def frame(key: SegmentKey) -> EngineCommand:
    return Feed(key, InputChunk("codes", 0, {"codes": np.ones((1, 2), np.uint16)}))


def end(key: SegmentKey) -> EngineCommand:
    last = InputChunk("codes", 0, {}, segment_finished=True, finish_reason=FinishReason.STOP)
    return Feed(key, last)


def test_time_of_a_segment_is_its_share_of_every_step_that_it_took_part_in(
    rounds: EngineRounds,
) -> None:
    alone = rounds.run([Admit(ONE, SETTINGS), frame(ONE)])
    both = rounds.run([Admit(OTHER, SETTINGS), frame(ONE), frame(OTHER)])
    without = rounds.run([frame(OTHER)])
    last = rounds.run([end(ONE), end(OTHER)])
    assert (both.step_segments, without.step_segments, last.step_segments) == (2, 1, 2)
    shared = (both.step_s + last.step_s) / 2
    assert last.busy_s == {
        ONE: pytest.approx(alone.step_s + shared),
        OTHER: pytest.approx(without.step_s + shared),
    }


def test_standing_is_told_when_it_has_changed_and_no_more(rounds: EngineRounds) -> None:
    assert rounds.run([Admit(ONE, SETTINGS)]).standing == {ONE: SegmentStatus("codes", 0)}
    for accepted in (1, 2):
        assert rounds.run([frame(ONE)]).standing == {ONE: SegmentStatus("codes", accepted)}
    assert rounds.run([Admit(OTHER, SETTINGS)]).standing == {OTHER: SegmentStatus("codes", 0)}


def test_segment_that_is_cancelled_before_the_engine_has_seen_it_is_told_as_released() -> None:
    mailbox, engine = EngineMailbox(1 << 20), FakeEngine()
    key = SegmentKey("s", 0)
    mailbox.put(Admit(key, SETTINGS))
    mailbox.put(Release(key, cancelled=True))
    stepped = EngineRounds(engine, {}).run(mailbox.take())
    assert [(each.key, each.output_positions) for each in stepped.released] == [(key, 0)]
    assert not engine.admitted
    assert not stepped.is_empty
