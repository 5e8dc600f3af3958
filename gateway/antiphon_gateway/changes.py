"""Wakes waiting tasks when something changes."""

from __future__ import annotations

import asyncio


class ChangeSignal:
    """Wakes all tasks that are waiting for the next change. All of them must use the same event
    loop.
    """

    def __init__(self) -> None:
        self.next = asyncio.Event()
        """An event that is set by the next change. To avoid missing a change, get this event before
        reading the state.
        """

    def tell(self) -> None:
        """Wake the waiting tasks, because something has changed."""
        self.next.set()
        self.next = asyncio.Event()
