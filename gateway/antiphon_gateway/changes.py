"""Notifies waiting tasks of changes."""

from __future__ import annotations

import asyncio


class ChangeSignal:
    """Wakes all tasks that wait for the next change. It belongs to one event loop."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """Return an event that is set at the next change. Call this before reading the state, so
        that no change is missed.
        """
        return self._next

    def tell(self) -> None:
        """Report a change."""
        self._next.set()
        self._next = asyncio.Event()
