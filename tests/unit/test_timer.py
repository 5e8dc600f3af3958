"""The timer under both event loops."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from antiphon.deadlines.timer import Timer

LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)


@pytest.fixture(params=LOOPS, ids=("asyncio", "uvloop"))
def runner(request: pytest.FixtureRequest) -> asyncio.Runner:
    return asyncio.Runner(loop_factory=request.param)


def test_a_timer_that_is_due_at_once_runs_once_and_can_be_set_again(runner: asyncio.Runner) -> None:
    async def run() -> None:
        loop, ran = asyncio.get_running_loop(), asyncio.Queue[float]()
        timer = Timer(ran.put_nowait)
        for _ in range(2):
            timer.set_at(moment := loop.time())
            assert timer.due_at == moment
            await ran.get()
            assert timer.due_at is None
        assert ran.empty()

    with runner:
        runner.run(run())


def test_lateness_is_counted_from_the_due_time(runner: asyncio.Runner) -> None:
    async def run() -> None:
        loop, ran = asyncio.get_running_loop(), asyncio.Queue[float]()
        Timer(ran.put_nowait).set_at(loop.time() - 5.0)
        assert await ran.get() >= 5.0

    with runner:
        runner.run(run())


def test_another_moment_replaces_what_is_pending(runner: asyncio.Runner) -> None:
    async def run() -> None:
        loop, ran = asyncio.get_running_loop(), asyncio.Queue[float]()
        timer = Timer(ran.put_nowait)
        timer.set_at(loop.time())
        timer.set_at(loop.time() + 3600)
        # Another timer, set later and due at once, runs after the replaced one would have.
        other = asyncio.Event()
        Timer(lambda _: other.set()).set_at(loop.time())
        await other.wait()
        assert ran.empty()
        timer.cancel()
        timer.cancel()
        assert timer.due_at is None

    with runner:
        runner.run(run())
