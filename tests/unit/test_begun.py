"""An awaitable that is run up to its first wait."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.deadlines.begun import Begun


async def test_an_awaitable_without_a_wait_is_done_at_once() -> None:
    async def work() -> int:
        return 7

    begun = Begun(work())
    assert begun.done
    assert await begun == 7


async def test_an_error_before_the_first_wait_is_raised_at_once() -> None:
    async def work() -> None:
        raise ValueError("early")

    with pytest.raises(ValueError, match="early"):
        Begun(work())


async def test_an_awaitable_that_waits_several_times_continues_where_it_is_awaited() -> None:
    first, second = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    seen = []

    async def work() -> str:
        seen.append("begun")
        await first.wait()
        loop.call_soon(second.set)
        await second.wait()
        return "whole"

    begun = Begun(work())
    assert not begun.done
    assert seen == ["begun"]
    loop.call_soon(first.set)
    assert await begun == "whole"


async def test_an_error_of_what_it_waits_for_is_raised_in_the_awaitable() -> None:
    awaited = asyncio.get_running_loop().create_future()
    caught = []

    async def work() -> str:
        try:
            await awaited
        except ValueError as error:
            caught.append(error)
        return "handled"

    begun = Begun(work())
    awaited.set_exception(ValueError("late"))
    assert await begun == "handled"
    assert len(caught) == 1


async def test_a_cancelled_awaitable_may_wait_again_before_it_ends() -> None:
    never, ended = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    order = []

    async def work() -> None:
        try:
            await never.wait()
        except asyncio.CancelledError:
            order.append("cancelled")
            loop.call_soon(ended.set)
            await ended.wait()
            order.append("ended")
            raise

    waits = asyncio.Event()

    async def run() -> None:
        begun = Begun(work())
        waits.set()
        await begun

    task = asyncio.create_task(run())
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert order == ["cancelled", "ended"]


async def test_a_timeout_around_it_ends_its_wait() -> None:
    never = asyncio.Event()
    begun = Begun(never.wait())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await begun
