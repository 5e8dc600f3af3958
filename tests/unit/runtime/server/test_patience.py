from __future__ import annotations

import asyncio

import pytest

from antiphon.patience import Patience


async def test_patience_ends_the_one_wait_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    in_time = 0

    async def wait_six_times() -> None:
        nonlocal now, in_time
        async with Patience(1.0) as patience:
            for _ in range(5):
                patience.begin()
                now += 0.9
                for _ in range(3):
                    await asyncio.sleep(0)
                patience.end()
                in_time += 1
            now += 5.0
            await asyncio.sleep(0)
            patience.begin()
            now += 1.1
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await wait_six_times()
    assert in_time == 5


async def test_patience_leaves_nothing_behind_when_nothing_was_late() -> None:
    async with Patience(3600.0) as patience:
        patience.begin()
        timer = patience._timer
        patience.end()
    assert timer is not None
    assert timer.cancelled()
