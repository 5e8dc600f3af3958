"""Text that arrives in pieces of UTF-8. A piece may end in the middle of a character. This module
doesn't perform any I/O.
"""

from __future__ import annotations

import codecs

from antiphon.errors import InvalidArgument
from antiphon.pipelines.edges import PIECE_FIELD


class Utf8Pieces:
    """Joins the pieces of a text and decodes them into characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def take(self, utf8: bytes, *, last: bool) -> str:
        """Return the characters that this piece completes. Set `last` if the text ends with it.

        Raises `InvalidArgument` if the text is not valid UTF-8.
        """
        try:
            return self._decoder.decode(utf8, last)
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"{PIECE_FIELD}: the pieces are not valid UTF-8 text ({error.reason}); encode "
                "the text before you split it",
                field=PIECE_FIELD,
            ) from error


def nothing_to_say() -> InvalidArgument:
    """Return the error for a text that contains nothing to speak."""
    return InvalidArgument(f"{PIECE_FIELD}: contains nothing to say", field=PIECE_FIELD)
