"""Reads lines from the terminal without a thread, because a blocked thread cannot be
interrupted.
"""

from __future__ import annotations

import asyncio
import os

LONGEST_LINE_BYTES = 4096
"""The maximum line length that a terminal's line editing supports."""


async def read_line(terminal: int) -> str | None:
    """Read the next line of a terminal. Returns None at the end of the input (Ctrl-D)."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(terminal, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(terminal)
    # A terminal becomes readable when a line is complete, and returns one line at a time.
    line = os.read(terminal, LONGEST_LINE_BYTES)
    return line.decode(errors="replace").strip() if line else None
