"""Tokenizes streamed text, with the same result as for the complete text. Does not import torch.

The tokenizer first splits a text into words. A run of letters and digits ends at the first
character of a different kind, so the tokens before that character do not depend on the text that
follows. The exception is a special token that can be written in the text, such as `[breath]`. The
tokens of the last word are final once the next character, or the end of the text, has arrived.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection

from antiphon_services.text.utf8_pieces import Utf8Pieces, nothing_to_say


class GrowingText:
    """The token IDs of a text that is still incomplete.

    `encode` tokenizes a text. `tokens` contains the special tokens that can be written in the text.
    """

    def __init__(self, encode: Callable[[str], list[int]], tokens: Collection[str]) -> None:
        self._encode = encode
        self._tokens = tokens
        self._begins = frozenset(each[0] for each in tokens)
        self._longest = max(map(len, tokens), default=0)
        self._decoder = Utf8Pieces()
        self._text = ""
        self._empty = True

    def take(self, utf8: bytes, *, last: bool) -> list[int]:
        """Add a piece of text and return the token IDs that have become final.

        `last` marks the end of the text. A piece may end in the middle of a character. Raises
        `InvalidArgument` if the text is not valid UTF-8, or if it consists only of whitespace.
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
        """Return the number of characters whose tokens are final, or 0 if there are none.

        Boundaries before `start` are not considered.
        """
        for at in range(len(self._text) - 1, start - 1, -1):
            ends_word = _in_word(self._text[at - 1]) and _ends_word(self._text[at])
            if ends_word and not self._within_token(at):
                return at
        return 0

    def _within_token(self, at: int) -> bool:
        """Return whether a special token might extend across the character boundary `at`."""
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
    """Return whether a character ends a word.

    Combining marks do not end a word, because they can modify the preceding letter.
    """
    category = unicodedata.category(character)
    return category[0] in "ZPS" or category in ("Cc", "Cf")
