"""Turns on the axis of the whole conversation."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon_tools.demo.timeline import PAUSE_S, TimelineSpan, conversation_pcm16, place_turns
from tests.unit.tools.demo.answers import RATE_HZ, pcm16, turn


def test_sound_begins_when_its_first_piece_came_and_the_next_turn_when_it_was_heard() -> None:
    first, second = place_turns([turn(sound=pcm16(2.0, 1)), turn(sound=pcm16(1.0, 2))])
    assert (first.asked_s, first.sound_s, first.end_s) == (0.0, 0.25, 2.25)
    assert second.asked_s == 2.25 + PAUSE_S
    assert second.arrivals_s == pytest.approx((second.asked_s + 0.25, second.asked_s + 0.5))


def test_turn_lasts_until_its_answer_is_made_when_that_takes_longer_than_the_sound() -> None:
    slow = turn(sound=pcm16(1.0, 1), last_s=4.0)
    assert place_turns([slow])[0].end_s == 4.0


def test_spans_are_the_reported_times_after_the_question_and_only_of_stages_that_worked() -> None:
    _, second = place_turns([turn(), turn()])
    at_s = second.asked_s
    assert second.spans == (
        TimelineSpan("thinker", at_s, at_s + 0.05, at_s + 0.1),
        TimelineSpan("talker", at_s + 0.02, at_s + 0.06, at_s + 0.4),
    )


def test_conversation_has_each_turns_sound_at_its_place_and_silence_elsewhere() -> None:
    placed = place_turns([turn(sound=pcm16(2.0, 1)), turn(), turn(sound=pcm16(1.0, 2))])
    samples = np.frombuffer(conversation_pcm16(placed, RATE_HZ), "<i2")
    expected = np.zeros_like(samples)
    for at, seconds, level in ((0, 2.0, 1), (2, 1.0, 2)):
        begin = round(placed[at].sound_s * RATE_HZ)
        expected[begin : begin + round(seconds * RATE_HZ)] = level
    assert np.array_equal(samples, expected)
    assert len(samples) == pytest.approx(placed[-1].end_s * RATE_HZ, abs=1)
