from __future__ import annotations

from antiphon_gateway.endpoints.openai.spoken import OVERHEAD_BYTES, SpokenAnswers


def test_spoken_answers_make_room_when_they_expire() -> None:
    now = [1000.0]
    answers = SpokenAnswers(60, OVERHEAD_BYTES + 3, clock=lambda: now[0])
    assert answers.keep("a", "one") == 1060
    now[0] = 1059.9
    assert (answers.transcript("a"), answers.keep("b", "two")) == ("one", 1059)
    now[0] = 1060.0
    assert (answers.transcript("a"), answers.transcript("b")) == ("", "")
    assert answers.keep("b", "two") == 1120
    assert answers.keep("c", "") == 1060
