"""Lines that a person types, without a thread: one that reads cannot be interrupted."""

from __future__ import annotations

import asyncio
import os

LONGEST_LINE_BYTES = 4096
"""What a terminal's own line editing allows."""


async def read_line(terminal: int) -> str | None:
    """The next line of a terminal's file descriptor; None at its end (Ctrl-D)."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(terminal, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(terminal)
    # A terminal is readable when it has a whole line, and gives one at a time.
    line = os.read(terminal, LONGEST_LINE_BYTES)
    return line.decode(errors="replace").strip() if line else None
