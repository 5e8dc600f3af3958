"""A text that arrives in pieces of UTF-8, which may end within a character. Pure."""

from __future__ import annotations

import codecs

from antiphon.errors import InvalidArgument

PIECES = "input.utf8"
"""The field that errors name."""


class Utf8Pieces:
    """Joins the pieces of one text to characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def take(self, utf8: bytes, *, last: bool) -> str:
        """The characters that a piece completes; `last` ends the text.

        Raises `InvalidArgument` for invalid UTF-8.
        """
        try:
            return self._decoder.decode(utf8, last)
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"{PIECES}: the pieces are not a text in UTF-8 ({error.reason}); encode the text "
                "before it is cut",
                field=PIECES,
            ) from error


def nothing_to_say() -> InvalidArgument:
    """The error for a text of pieces that says nothing."""
    return InvalidArgument(f"{PIECES}: there is nothing to say", field=PIECES)
