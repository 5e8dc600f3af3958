from __future__ import annotations

import pytest

from antiphon_tools.verify_release.questions import word_error_rate


@pytest.mark.parametrize(
    ("said", "heard", "rate"),
    [
        ("The river is quiet.", "the river, is QUIET", 0.0),
        ("the river is quiet", "the river was quiet", 0.25),
        ("the river is quiet", "the is quiet", 0.25),
        ("the river is quiet", "the the river is quiet", 0.25),
        ("the river is quiet", "", 1.0),
        ("one two", "two one", 1.0),
        ("one", "two three four", 3.0),
        ("你好吗", "你好", 1 / 3),
        ("été à la mer", "Été à la mer!", 0.0),
        ("3 cats", "three cats", 0.5),
    ],
)
def test_words_are_counted_without_case_and_punctuation(said: str, heard: str, rate: float) -> None:
    assert word_error_rate(said, heard) == pytest.approx(rate)


def test_nothing_said_has_no_rate() -> None:
    with pytest.raises(ValueError, match="no words were said"):
        word_error_rate("...", "a word")
