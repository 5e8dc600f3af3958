from __future__ import annotations

import asyncio

from antiphon.errors import DeadlineExceeded, Unavailable
from antiphon.runtime.server.deferred_closes import DeferredCloses
from antiphon.runtime.session.instructions import End


async def test_end_is_told_once_when_its_chunks_have_come() -> None:
    told: list[End] = []
    ends = DeferredCloses(told.append, 60.0)
    ends.let_go("unknown")
    ends.hold("s")
    ends.hold("s")
    assert not told
    ends.let_go("s")
    ends.let_go("s", Unavailable("late"))
    assert told == [End("s", None)]


async def test_end_becomes_an_error_when_nothing_is_acknowledged_in_time() -> None:
    told: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    ends = DeferredCloses(told.set_result, 0.01)
    ends.hold("s")
    assert isinstance((await told).error, DeadlineExceeded)
