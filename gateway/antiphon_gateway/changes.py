"""Notify waiting tasks of a change."""

from __future__ import annotations

import asyncio


class ChangeSignal:
    """Wakes all who wait for the next change. Belongs to one event loop."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """Set at the first change from now on: who takes it before looking misses none."""
        return self._next

    def tell(self) -> None:
        """Something has changed."""
        self._next.set()
        self._next = asyncio.Event()
