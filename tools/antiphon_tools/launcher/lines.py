"""Splits a stream of bytes into lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_LINE_BYTES = 64 << 10

_ENDING = re.compile(rb"\r\n|\n|\r")


class LineBuffer:
    """Splits a stream into lines. A carriage return also ends a line, because progress bars use it.

    Empty lines are skipped. Lines longer than `MAX_LINE_BYTES` are split.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """Add data and return the lines that are now complete."""
        *lines, self._rest = _ENDING.split(self._rest + data)
        if len(self._rest) >= MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return (line.decode(errors="replace") for line in lines if line.strip())

    def flush(self) -> Iterator[str]:
        """Return the remaining data after the end of the stream."""
        rest, self._rest = self._rest, b""
        return iter([rest.decode(errors="replace")] if rest.strip() else [])
