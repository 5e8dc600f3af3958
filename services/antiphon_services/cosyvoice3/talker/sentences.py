"""Normalizes text and splits it into parts.

This module mirrors the behavior of the vendor's `text_normalize` and `split_paragraph` when neither
ttsfrd nor WeText is installed. If a text does not contain Chinese, its digits are spelled out in
English. Some characters are replaced. Sentences are joined into parts of 60 to 80 characters for
Chinese, or 60 to 80 tokens for other languages.
"""

from __future__ import annotations

import importlib
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from antiphon.errors import FailedPrecondition

MOST, LEAST, JOINED = 80, 60, 20
"""Limits for the length of a part.

`MOST` is the maximum, unless a single sentence is longer. `LEAST` is the minimum for all parts
except the last one. If the last part is shorter than `JOINED`, it is appended to the previous part.
"""

_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_CHINESE_ENDS = "。？！；：、.?!;"  # noqa: RUF001
_OTHER_ENDS = ".?!;:"
_CLOSING = '"”'
_CHINESE_REPLACED = (
    ("²", "平方"),
    ("³", "立方"),
    (".", "。"),
    (" - ", "，"),  # noqa: RUF001
)
_CHINESE_REMOVED = re.compile("[（）【】`]")  # noqa: RUF001
_FINAL_COMMAS = re.compile("[，,、]+$")  # noqa: RUF001
_CONTROL = ("<|", "|>")

Length = Callable[[str], int]


def split_text(text: str, tokens: Length) -> list[str]:
    """Split a text into parts, each of which is spoken as one utterance.

    Returns an empty list if there is nothing to speak. `tokens` counts the tokens in a text. A text
    that contains the vendor's control tokens is returned unchanged, as a single part.
    """
    if all(each in text for each in _CONTROL) or not text:
        return [text] if text else []
    text = text.strip()
    if _CHINESE.search(text):
        parts = _parts(_chinese(text), _CHINESE_ENDS, "。", len)
    else:
        parts = _parts(spell_numbers(text), _OTHER_ENDS, ".", tokens)
    return [part for part in parts if not _only_punctuation(part)]


def spell_numbers(text: str) -> str:
    """Replace each run of digits with English words."""
    parts: list[str] = []
    digits = ""
    for character in [*text, ""]:
        if character.isdigit():
            digits += character
            continue
        if digits:
            parts.append(_words(digits))
            digits = ""
        parts.append(character)
    return "".join(parts)


def _words(digits: str) -> str:
    speller = _inflect().engine()
    try:
        return str(speller.number_to_words(digits))
    except _inflect().NumOutOfRangeError:
        # The package has no name for such a large number, so it is spelled digit by digit.
        return str(speller.number_to_words(digits, group=1))


@cache
def _inflect() -> Any:
    """Import the inflect package, which can take seconds on a busy machine.

    Raises `FailedPrecondition` if it is not installed.
    """
    try:
        return importlib.import_module("inflect")
    except ModuleNotFoundError as error:
        raise FailedPrecondition(
            "spelling out numbers requires the package inflect, which is not installed; install "
            "antiphon with the extra `clips`"
        ) from error


def _chinese(text: str) -> str:
    text = _without_blanks(text.replace("\n", ""))
    for old, new in _CHINESE_REPLACED:
        text = text.replace(old, new)
    text = _CHINESE_REMOVED.sub("", text).replace("——", " ")
    return _FINAL_COMMAS.sub("。", text)


def _without_blanks(text: str) -> str:
    """Remove all spaces that are not between two ASCII characters."""
    around = [each.isascii() and each != " " for each in text]
    return "".join(
        each
        for at, each in enumerate(text)
        if each != " " or (at + 1 < len(text) and around[at - 1] and around[at + 1])
    )


def _parts(text: str, ends: str, end: str, length: Length) -> list[str]:
    """Join sentences into parts."""
    if not text:
        return []
    parts: list[str] = []
    part = ""
    for sentence in _sentences(text if text[-1] in ends else text + end, ends):
        if length(part + sentence) > MOST and length(part) > LEAST:
            parts.append(part)
            part = ""
        part += sentence
    if part and parts and length(part) < JOINED:
        parts[-1] += part
    elif part:
        parts.append(part)
    return parts


def _sentences(text: str, ends: str) -> Iterator[str]:
    """Yield the sentences, including their final punctuation and closing quotes."""
    sentences: list[str] = []
    start = 0
    for at, character in enumerate(text):
        if character not in ends:
            continue
        if at > start:
            sentences.append(text[start:at] + character)
        if at + 1 < len(text) and text[at + 1] in _CLOSING:
            if sentences:
                sentences[-1] += text[at + 1]
            start = at + 2
        else:
            start = at + 1
    yield from sentences


def _only_punctuation(text: str) -> bool:
    return all(unicodedata.category(each)[0] in "PS" for each in text)
