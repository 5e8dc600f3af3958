"""Texts are changed and cut as the vendor's front end does it without its normalizers."""

from __future__ import annotations

import pytest

from antiphon_services.cosyvoice3.talker.sentences import MOST, spell_numbers, split_text

pytest.importorskip("inflect")


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Room 42 opens at 7:30", "Room forty-two opens at seven:thirty"),
        ("1999", "one thousand, nine hundred and ninety-nine"),
        ("no digits", "no digits"),
        ("", ""),
        ("1" * 40, ", ".join(["one"] * 40)),
    ],
)
def test_numbers_are_spelled(text: str, spoken: str) -> None:
    assert spell_numbers(text) == spoken


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("  \n ", []),
        ("?!", []),
        ("a", ["a."]),
        ("Hello there. ", ["Hello there."]),
        ('He said: "No." Then he went', ['He said: "No." Then he went.']),
        (". And then", [" And then."]),
        ('"', []),
        ("<|x|> 42", ["<|x|> 42"]),
        ("你好", ["你好。"]),
        ("你 好 a b（c）", ["你好a bc。"]),  # noqa: RUF001
        ("5² 米 3.", ["5平方米3。"]),
        ("一\n二，", ["一二。"]),  # noqa: RUF001
    ],
)
def test_short_text_is_one_part_at_most(text: str, parts: list[str]) -> None:
    assert split_text(text, words) == parts


def test_long_text_is_cut_between_sentences() -> None:
    sentences = [f"{'word ' * 24}end." for _ in range(10)]
    parts = split_text(" ".join(sentences), words)
    assert "".join(parts).split() == " ".join(sentences).split()
    assert [words(part) for part in parts] == [75, 75, 75, 25]
    assert all(words(part) <= MOST for part in parts)


def test_short_rest_joins_the_part_before() -> None:
    text = f"{'word ' * 69}end. {'word ' * 69}end. So."
    assert [words(part) for part in split_text(text, words)] == [70, 71]


def test_chinese_is_counted_by_characters() -> None:
    parts = split_text("一二三四五六七八九。" * 20, words)
    assert [len(part) for part in parts] == [80, 80, 40]
