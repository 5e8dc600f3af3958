from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon_gateway.endpoints.openai.spoken import (
    OVERHEAD_BYTES,
    OwnSpokenAnswers,
    SharedSpokenAnswers,
    SpokenAnswers,
)
from antiphon_gateway.host_store import HostStore


def own(_: Path, clock: Callable[[], float]) -> SpokenAnswers:
    return OwnSpokenAnswers(60, OVERHEAD_BYTES + 3, clock=clock)


def shared(path: Path, clock: Callable[[], float]) -> SpokenAnswers:
    return SharedSpokenAnswers(60, OVERHEAD_BYTES + 3, HostStore(str(path)), clock=clock)


@pytest.mark.parametrize("made", [own, shared])
def test_spoken_answers_make_room_when_they_expire(
    tmp_path: Path, made: Callable[[Path, Callable[[], float]], SpokenAnswers]
) -> None:
    now = [1000.0]
    answers = made(tmp_path, lambda: now[0])
    assert answers.keep("a", "one") == 1060
    now[0] = 1059.9
    assert (answers.transcript("a"), answers.keep("b", "two")) == ("one", 1059)
    now[0] = 1060.0
    assert (answers.transcript("a"), answers.transcript("b")) == ("", "")
    assert answers.keep("b", "two") == 1120
    assert answers.keep("c", "") == 1060


def test_spoken_answers_of_one_gateway_are_known_to_the_others_and_take_their_room(
    tmp_path: Path,
) -> None:
    first, second = (shared(tmp_path, lambda: 1000.0) for _ in range(2))
    assert first.keep("a", "o\ud800") == 1000
    assert first.keep("a", "\ud800") == 1060
    assert second.transcript("a") == "\ud800"
    assert second.keep("b", "two") == 1000
    assert first.transcript("b") == ""
