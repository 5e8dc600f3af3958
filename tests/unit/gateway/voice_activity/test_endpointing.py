from __future__ import annotations

import pytest

from antiphon_gateway.voice_activity.endpointing import Endpointing, EndpointRule, SpeechEdge
from antiphon_gateway.voice_activity.network import FRAME_S


def edges(probabilities: list[float], threshold: float = 0.5, frames: int = 4) -> list[SpeechEdge]:
    endpointing = Endpointing(EndpointRule(threshold, frames * FRAME_S))
    return [edge for p in probabilities if (edge := endpointing.hear(p)) is not None]


def test_speech_begins_with_its_first_frame_and_ends_after_silence() -> None:
    heard = [0.1] * 2 + [0.9] * 5 + [0.1] * 10
    assert edges(heard) == [SpeechEdge(True, 2), SpeechEdge(False, 11)]


def test_sound_of_less_than_96_ms_is_no_speech() -> None:
    assert edges([0.1, 0.9, 0.9, 0.1] * 5) == []


def test_pause_shorter_than_the_silence_does_not_end_a_turn() -> None:
    heard = ([0.9] * 4 + [0.0] * 3) * 3 + [0.0]
    assert edges(heard) == [SpeechEdge(True, 0), SpeechEdge(False, 22)]


@pytest.mark.parametrize(
    ("between", "found"),
    [(0.4, [SpeechEdge(True, 0)]), (0.3, [SpeechEdge(True, 0), SpeechEdge(False, 7)])],
)
def test_voice_between_the_limits_changes_nothing(between: float, found: list[SpeechEdge]) -> None:
    assert edges([0.9, 0.9, 0.9] + [between] * 8) == found


def test_frame_between_the_limits_counts_as_silence_once_it_was_silent() -> None:
    heard = [0.9] * 3 + [0.1, 0.4, 0.4, 0.4]
    assert edges(heard) == [SpeechEdge(True, 0), SpeechEdge(False, 7)]


def test_quiet_begin_is_no_begin_but_may_follow_one() -> None:
    assert edges([0.4, 0.4, 0.4, 0.4]) == []
    assert edges([0.4, 0.6, 0.4, 0.4]) == [SpeechEdge(True, 1)]


def test_lowest_threshold_still_has_silence() -> None:
    heard = [0.2] * 3 + [0.0] * 4
    assert edges(heard, threshold=0.1) == [SpeechEdge(True, 0), SpeechEdge(False, 7)]


def test_forgotten_speech_does_not_end() -> None:
    endpointing = Endpointing(EndpointRule(0.5, 2 * FRAME_S))
    assert [endpointing.hear(p) for p in (0.9, 0.9, 0.9)][-1] == SpeechEdge(True, 0)
    endpointing.forget()
    assert [endpointing.hear(0.0) for _ in range(4)] == [None] * 4
    assert [endpointing.hear(0.9) for _ in range(3)][-1] == SpeechEdge(True, 7)
