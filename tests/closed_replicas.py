"""The replicas whose channels a fleet has closed."""

from __future__ import annotations

import asyncio

import pytest

from antiphon_gateway.fleet.replica import Replica


def note_closed(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[Replica]:
    """Note them from now on. What is read is forgotten."""
    close, closed = Replica.close, asyncio.Queue[Replica]()

    async def noted(replica: Replica) -> None:
        await close(replica)
        closed.put_nowait(replica)

    monkeypatch.setattr(Replica, "close", noted)
    return closed
