"""Tokenize a text that arrives in pieces to the ids of the whole text. Does not import torch.

The tokenizer first splits a text into words. Runs of letters and digits end at the first other
character. The ids of the text before such a character therefore do not depend on what follows,
except within a token that can be written in a text, such as `[breath]`. The ids of the last word
are known when the next character, or the end of the text, has arrived.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection

from antiphon_services.text.utf8_pieces import Utf8Pieces, nothing_to_say


class GrowingText:
    """The ids of a text, computed by `encode`; `tokens` are the tokens that can be written in
    it."""

    def __init__(self, encode: Callable[[str], list[int]], tokens: Collection[str]) -> None:
        self._encode = encode
        self._tokens = tokens
        self._begins = frozenset(each[0] for each in tokens)
        self._longest = max(map(len, tokens), default=0)
        self._decoder = Utf8Pieces()
        self._text = ""
        self._empty = True

    def take(self, utf8: bytes, *, last: bool) -> list[int]:
        """Add a piece, and return the ids that are newly known; `last` ends the text.

        A piece may end within a character. Raises `InvalidArgument` for invalid UTF-8, and for a
        whole text of only whitespace.
        """
        come = self._decoder.take(utf8, last=last)
        looked_at = max(len(self._text) - self._longest, 1)
        self._text += come
        stop = len(self._text) if last else self._settled(looked_at)
        known, self._text = self._text[:stop], self._text[stop:]
        self._empty = self._empty and not known.strip()
        if last and self._empty:
            raise nothing_to_say()
        return self._encode(known) if known else []

    def _settled(self, start: int) -> int:
        """Return the number of characters with final ids, or 0; no boundary before `start` is
        final."""
        for at in range(len(self._text) - 1, start - 1, -1):
            ends_word = _in_word(self._text[at - 1]) and _ends_word(self._text[at])
            if ends_word and not self._within_token(at):
                return at
        return 0

    def _within_token(self, at: int) -> bool:
        """Return whether a token, or the possible start of one, extends over the character boundary
        `at`."""
        for start in range(max(at - self._longest + 1, 0), at):
            if self._text[start] not in self._begins:
                continue
            come = self._text[start : start + self._longest]
            for each in self._tokens:
                if start + len(each) > at and (come.startswith(each) or each.startswith(come)):
                    return True
        return False


def _in_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LN"


def _ends_word(character: str) -> bool:
    """Return whether a character ends a word. Marks do not: they may combine with the letter
    before."""
    category = unicodedata.category(character)
    return category[0] in "ZPS" or category in ("Cc", "Cf")
