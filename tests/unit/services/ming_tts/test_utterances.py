"""Utterances of texts: whole as a port of the vendor's front end cuts them, and as they arrive."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import tests.equality.ming_tts.flash_cases as cases
from antiphon.errors import InvalidArgument
from antiphon_services.ming_tts.talker.utterances import (
    LEAST_UNITS,
    MOST_CHARACTERS,
    MOST_UNITS,
    ArrivingText,
    says_something,
    split_text,
    units_of,
)

RECORDED = json.loads((Path(cases.__file__).parent / "recorded_cuts.json").read_text())
TEXTS = [*cases.LONG.values(), *(text for text, _ in RECORDED)]
MARKED = (
    "One two three four five six. It costs 3.14 now, he said: “No!” Then they all went home. Yes"
)


def arrived(text: str, sizes: list[int]) -> list[str]:
    """The utterances of a text that comes in pieces of so many bytes, and then the rest."""
    arriving, data, made = ArrivingText(), text.encode(), []
    for size in sizes:
        made += arriving.take(data[:size], last=False)
        data = data[size:]
    return made + arriving.take(data, last=True)


@pytest.mark.parametrize(("text", "expected"), RECORDED, ids=range(len(RECORDED)))
def test_whole_texts_are_cut_as_recorded(text: str, expected: list[str]) -> None:
    assert split_text(text) == expected


def test_recorded_texts_have_one_utterance_and_many() -> None:
    counts = [len(expected) for _, expected in RECORDED]
    assert counts.count(1) > 3
    assert max(counts) > 3
    assert len(counts) > 40


@pytest.mark.parametrize("text", [text for text in TEXTS if says_something(text)])
def test_cuts_of_arriving_texts_do_not_depend_on_how_they_arrive(text: str) -> None:
    whole = arrived(text, [])
    size = len(text.encode())
    draw = random.Random(text)
    assert arrived(text, [1] * size) == whole
    assert arrived(text, [draw.randrange(40) for _ in range(20)]) == whole
    # Nothing is lost but white space, and what says nothing at an utterance's place.
    said = "".join("".join(whole).split())
    wanted = "".join(text.split())
    assert said == wanted or len(said) >= len(wanted) - 12
    assert all(units_of(each) <= MOST_UNITS for each in whole)
    assert all(len(each) <= MOST_CHARACTERS for each in whole)
    assert all(units_of(each) >= LEAST_UNITS for each in whole[:-1] if len(each) < 100)


def test_an_utterance_ends_at_a_sentence_whose_end_is_known() -> None:
    assert arrived(MARKED, []) == [
        "One two three four five six.",
        "It costs 3.14 now, he said: “No!”",
        "Then they all went home.",
        "Yes",
    ]
    arriving = ArrivingText()
    assert arriving.take(b"One two three four five.", last=False) == []
    assert arriving.take(b" ", last=False) == ["One two three four five."]
    assert arriving.take("你好，今天天气很好。".encode(), last=False) == []  # noqa: RUF001
    assert arriving.take("我".encode()[:1], last=False) == []
    assert arriving.take("我".encode()[1:], last=False) == ["你好，今天天气很好。"]  # noqa: RUF001
    assert arriving.take(b"", last=True) == ["我"]


def test_long_sentences_are_cut_at_clauses_and_then_between_words() -> None:
    clauses = "one two three four five six seven, " * 9
    first, *_ = arrived(clauses, [])
    assert first.endswith("seven,")
    assert units_of(first) == 49
    first, *_ = arrived("word " * 60, [])
    assert first == " ".join(["word"] * MOST_UNITS)
    first, *_ = arrived("水" * 120, [])
    assert first == "水" * MOST_UNITS
    first, *_ = arrived("7" * 1000, [])
    assert len(first) == MOST_CHARACTERS


@pytest.mark.parametrize("text", ["", " ", "...", "\n\n"])
def test_a_text_that_says_nothing_has_no_utterance_and_is_silent(text: str) -> None:
    """The front end refuses it, unless a stage may write nothing."""
    arriving, data = ArrivingText(), text.encode()
    assert not arriving.take(data[:1], last=False)
    assert not arriving.take(data[1:], last=True)
    assert arriving.silent


def test_a_text_that_says_something_is_not_silent() -> None:
    arriving = ArrivingText()
    assert not arriving.take(b"... ", last=False)
    assert arriving.silent
    assert arriving.take(b"Yes.", last=True)
    assert not arriving.silent


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="not valid UTF-8 text"):
        ArrivingText().take(b"\xff", last=False)
    with pytest.raises(InvalidArgument, match="not valid UTF-8 text"):
        ArrivingText().take("水".encode()[:2], last=True)
