from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from antiphon.deadlines.wait_deadline import WaitDeadline

TIMEOUT_S = 1.0


class Time:
    """The loop's time, which passes as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: self.now)

    async def passes(self, seconds: float) -> None:
        """The loop runs meanwhile."""
        until = self.now + seconds
        while self.now < until:
            await self.jumps(min(0.01, until - self.now))

    async def jumps(self, seconds: float) -> None:
        """The loop stands still meanwhile."""
        self.now += seconds
        for _ in range(3):
            await asyncio.sleep(0)


async def test_patience_ends_the_one_wait_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    time, last = Time(monkeypatch), asyncio.Event()

    async def wait_six_times() -> None:
        async with WaitDeadline(TIMEOUT_S) as patience:
            for _ in range(5):
                patience.begin()
                await time.passes(0.9)
                patience.end()
            await time.passes(5.0)
            patience.begin()
            last.set()
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait_six_times())
    await last.wait()
    await time.passes(0.99)
    assert not waiting.done()
    await time.passes(0.1)
    with pytest.raises(TimeoutError):
        await waiting


@pytest.mark.parametrize("stall_s", [0.2, 30.0])
async def test_patience_does_not_count_a_stall_of_its_own_loop(
    monkeypatch: pytest.MonkeyPatch, stall_s: float
) -> None:
    """What has come meanwhile is read before anybody is blamed."""
    time, ended = Time(monkeypatch), asyncio.Event()

    async def wait() -> None:
        async with WaitDeadline(TIMEOUT_S) as patience:
            patience.begin()
            await ended.wait()

    waiting = asyncio.create_task(wait())
    await time.passes(0.95)
    await time.jumps(stall_s)
    await time.passes(0.09)
    assert not waiting.done()
    await time.jumps(stall_s)
    await time.passes(0.09)
    assert not waiting.done()
    await time.passes(0.1)
    with pytest.raises(TimeoutError):
        await waiting


async def test_patience_leaves_nothing_behind_when_nothing_was_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    call_at, timers = loop.call_at, list[asyncio.TimerHandle]()

    def noted(*given: Any) -> asyncio.TimerHandle:
        timers.append(call_at(*given))
        return timers[-1]

    monkeypatch.setattr(loop, "call_at", noted)
    async with WaitDeadline(3600.0) as patience:
        patience.begin()
        patience.end()
        (timer,) = timers
        assert not timer.cancelled()
    assert [each.cancelled() for each in timers] == [True]


def test_patience_ends_when_uvloop_runs_the_look_at_once() -> None:
    async def wait() -> None:
        async with WaitDeadline(0.0) as patience:
            patience.begin()
            await asyncio.Event().wait()

    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        pytest.raises(TimeoutError),
    ):
        runner.run(wait())
