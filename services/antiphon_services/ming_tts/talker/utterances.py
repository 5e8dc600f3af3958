"""Splits text into utterances. The functions of this module have no side effects.

The length of a text is measured in units. A unit is a Chinese character or a word of Latin letters.
In Ming-flash-omni, an utterance has up to `MOST_UNITS` units, because the model was trained on
short utterances.

A complete text is split in the same way as in the port of the vendor's front end in vllm-omni. The
utterances of the vendor's own code are shorter. Sentences are joined as long as they fit. Longer
sentences are split into clauses and then between words. Streamed text is split after the first
sentence that ends after `LEAST_UNITS` units. The result depends only on the text, not on how it
arrives.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator

from antiphon_services.text.utf8_pieces import Utf8Pieces

MOST_UNITS = 50
LEAST_UNITS = 5
MOST_CHARACTERS = 400
"""Streamed text without units, such as text that consists only of digits, is split after this many
characters.
"""

# Stands for a full stop within a number or an abbreviation. Unicode does not assign this character,
# so it cannot occur in a text.
_INNER_STOP = "\ue000"
_UNIT = re.compile(f"[\u4e00-\u9fa5{_INNER_STOP}]|[a-zA-Z]+")
_UNIT_OR_REST = re.compile("[\u4e00-\u9fa5]|[a-zA-Z]+|[^a-zA-Z\u4e00-\u9fa5]+")
_SILENT = frozenset(string.punctuation + string.whitespace)
_TO_CHINESE = str.maketrans(".!?,", "。！？，")  # noqa: RUF001
_SENTENCE_ENDS, _CLAUSE_ENDS = "。！？", "，;；"  # noqa: RUF001
_NOT_FIRST = "，,:;" + string.whitespace  # noqa: RUF001

_ARRIVING_ENDS = "。！？!?…\n."  # noqa: RUF001
_ARRIVING_CLAUSES = "，,;；:：、"  # noqa: RUF001
_CLOSING = "\"'”’」』)）"  # noqa: RUF001


def units_of(text: str) -> int:
    """Return the number of units in a text."""
    return len(_UNIT.findall(text))


def says_something(text: str) -> bool:
    """Return whether a text contains anything except ASCII punctuation and whitespace."""
    return not _SILENT.issuperset(text)


def split_text(text: str) -> list[str]:
    """Split a complete text into one or more utterances. A text that fits is returned unchanged.

    In longer texts, ASCII punctuation between sentences and clauses is replaced with Chinese
    punctuation.
    """
    stripped = _with_inner_stops(text.strip()).replace("\n", " ").replace("。，", "。")  # noqa: RUF001
    if units_of(stripped) <= MOST_UNITS:
        return [text]
    utterances: list[str] = []
    for sentence in _sentences(stripped.translate(_TO_CHINESE)):
        size = units_of(sentence)
        if size > MOST_UNITS:
            for clause in _joined_clauses(_clauses(sentence)):
                for part in _parts(clause):
                    _append(utterances, part)
        elif utterances and units_of(utterances[-1]) + size <= MOST_UNITS:
            utterances[-1] += sentence
        else:
            utterances.append(sentence)
    cleaned = (each.replace(_INNER_STOP, ".").removeprefix("，").strip() for each in utterances)  # noqa: RUF001
    return [each for each in cleaned if each] or [text]


def _with_inner_stops(text: str) -> str:
    """Replace full stops between two digits and between two capital letters."""
    text = re.sub(r"(\d)\.(\d)", rf"\1{_INNER_STOP}\2", text)
    # Matches cannot overlap, so a single pass would only replace every second full stop.
    for _ in range(3):
        text = re.sub(r"([A-Z])\.([A-Z])", rf"\1{_INNER_STOP}\2", text)
    return text


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences with their punctuation. A full stop is added to the last one if it has
    none.
    """
    for found in re.finditer(f"[^{_SENTENCE_ENDS}]*[{_SENTENCE_ENDS}]|[^{_SENTENCE_ENDS}]+", text):
        sentence = found[0].strip()
        if sentence:
            yield sentence if sentence.endswith(tuple(_SENTENCE_ENDS)) else f"{sentence}。"


def _clauses(sentence: str) -> list[str]:
    """Split a sentence into clauses with their punctuation.

    Clauses without speakable content are appended to the previous clause.
    """
    clauses: list[str] = []
    for found in re.finditer(f"[^{_CLAUSE_ENDS}]*[{_CLAUSE_ENDS}]|[^{_CLAUSE_ENDS}]+", sentence):
        clause = found[0].strip()
        if says_something(clause):
            clauses.append(clause)
        elif clause and clauses:
            clauses[-1] += clause
    return clauses


def _joined_clauses(clauses: list[str]) -> Iterator[str]:
    """Yield the clauses. A short clause is joined to the next one if both fit."""
    at = 0
    while at < len(clauses):
        pair = "".join(clauses[at : at + 2])
        short = units_of(clauses[at]) < LEAST_UNITS and at + 1 < len(clauses)
        joined = short and units_of(pair) <= MOST_UNITS
        yield pair if joined else clauses[at]
        at += 2 if joined else 1


def _parts(clause: str) -> list[str]:
    """Split a clause between units if it is too long."""
    if units_of(clause) <= MOST_UNITS:
        return [clause]
    parts, part = [], ""
    for unit in _UNIT_OR_REST.findall(clause):
        if units_of(part) + units_of(unit) <= MOST_UNITS:
            part += unit
            continue
        if part:
            parts.append(part)
        part = unit
    return [*parts, part] if part else parts


def _append(utterances: list[str], text: str) -> None:
    """Append a clause, or a part of one, to the last utterance if it fits."""
    text = text.lstrip(_NOT_FIRST)
    if not says_something(text):
        return
    last = utterances[-1] if utterances else ""
    stub = last.endswith(tuple(_SENTENCE_ENDS)) and units_of(text) < LEAST_UNITS
    if not utterances or units_of(last) + units_of(text) > MOST_UNITS or stub:
        utterances.append(text)
        return
    word = re.match("[a-zA-Z0-9]", text) and not last.endswith(" ")
    utterances[-1] += f" {text}" if word else text


class ArrivingText:
    """Splits text that arrives as pieces of UTF-8. An utterance is returned as soon as its end is
    known.
    """

    def __init__(self) -> None:
        self._decoder = Utf8Pieces()
        self._text = ""
        self.silent = True
        """Whether there has not been an utterance yet."""

    def take(self, utf8: bytes, *, last: bool) -> list[str]:
        """Add a piece of text and return the utterances that are complete.

        `last` marks the end of the text. A piece may end in the middle of a character. Raises
        `InvalidArgument` if the text is not valid UTF-8.
        """
        self._text += self._decoder.take(utf8, last=last)
        utterances = []
        while (end := _first_end(self._text, last=last)) is not None:
            utterances.append(self._text[:end].strip())
            self._text = self._text[end:]
        if last:
            utterances.append(self._text.strip())
            self._text = ""
        spoken = [each for each in utterances if says_something(each)]
        self.silent = self.silent and not spoken
        return spoken


def _first_end(text: str, *, last: bool) -> int | None:
    """Return the end of the first utterance, or None if later text could still change it."""
    count, in_word, clause, space = 0, False, 0, 0
    for at, character in enumerate(text):
        latin = character.isascii() and character.isalpha()
        if _UNIT.match(character) and not (latin and in_word):
            count += 1
        in_word = latin
        if count > MOST_UNITS or at == MOST_CHARACTERS:
            return clause or space or at
        if character.isspace():
            space = at + 1
        if at + 1 == len(text) and not last:
            return None
        following = text[at + 1 : at + 2]
        if count < LEAST_UNITS:
            continue
        if character in _ARRIVING_CLAUSES and not following.isdigit():
            clause = at + 1
        if _ends_sentence(text, at, following):
            return at + 1
    return None


def _ends_sentence(text: str, at: int, following: str) -> bool:
    """Return whether a sentence ends with the character at `at`, given the character after it."""
    if following and following in _ARRIVING_ENDS + _CLOSING:
        return False
    end = text[: at + 1].rstrip(_CLOSING)[-1:]
    if not end or end not in _ARRIVING_ENDS:
        return False
    return end != "." or not following or following.isspace()
