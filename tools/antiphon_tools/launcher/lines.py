"""Bytes that arrive in pieces, cut into lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_LINE_BYTES = 64 << 10

_ENDING = re.compile(rb"\r\n|\n|\r")


class LineBuffer:
    """Cuts a stream into lines; progress bars end theirs with a carriage return.

    Empty lines are left out. A longer line than `MAX_LINE_BYTES` comes in parts.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that are complete now."""
        *lines, self._rest = _ENDING.split(self._rest + data)
        if len(self._rest) >= MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return (line.decode(errors="replace") for line in lines if line.strip())

    def flush(self) -> Iterator[str]:
        """What is left when the stream has ended."""
        rest, self._rest = self._rest, b""
        return iter([rest.decode(errors="replace")] if rest.strip() else [])
