"""Progress counts as life: a stage that works is waited for, and those behind it wait with it."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.v1 import session_pb2
from tests.contract.fake_stages import CODE2WAV, TALKER, THINKER, Session, think
from tests.contract.served_gateway import SPOKEN, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

GENEROUS_S = 120.0
IDLE_S = 2.0


async def test_a_call_is_waited_for_while_a_stage_says_that_it_works_on_it() -> None:
    async def work(session: Session) -> None:
        await session.opened()
        # Longer than the gateway waits for a word, in all; each pause is a part of that.
        for _ in range(10):
            await asyncio.sleep(IDLE_S / 8)
            await session.progress()
        await think(session)

    async with asyncio.timeout(GENEROUS_S), serve_gateway(idle_timeout_s=IDLE_S) as served:
        served.fakes[THINKER].script = work
        assert (await served.chat()).status_code == 200


async def test_the_stages_behind_the_one_that_works_are_told_and_those_before_it_are_not() -> None:
    async def work(session: Session) -> None:
        await session.opened()
        await session.progress(segment=0)
        await asyncio.Event().wait()

    told: asyncio.Queue[tuple[str, session_pb2.SessionRequest]] = asyncio.Queue()

    async def listen(session: Session) -> None:
        await session.opened()
        async for request in session.requests:
            told.put_nowait((session.role, request))

    async with asyncio.timeout(GENEROUS_S), serve_gateway() as served:
        for role in (THINKER, CODE2WAV):
            served.fakes[role].script = listen
        served.fakes[TALKER].script = work
        asking = asyncio.create_task(served.chat(**SPOKEN))
        role, request = await told.get()
        assert role == CODE2WAV
        assert request.WhichOneof("message") == "progress"
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await served.fakes[THINKER].sessions[0].ended.wait()
        assert told.empty()


async def test_a_stage_that_says_nothing_is_not_waited_for_after_its_progress_ends() -> None:
    async def work(session: Session) -> None:
        await session.opened()
        await session.progress()
        await asyncio.Event().wait()

    async with asyncio.timeout(GENEROUS_S), serve_gateway(idle_timeout_s=0.2) as served:
        served.fakes[THINKER].script = work
        response = await served.chat()
        assert response.status_code == 504
        assert "no stage has sent anything for 0.2 s" in response.text


async def test_progress_gives_a_request_no_more_time_than_it_has() -> None:
    async def work(session: Session) -> None:
        await session.opened()
        while True:
            await session.progress()
            await asyncio.sleep(IDLE_S / 20)

    timeouts = {"idle_timeout_s": GENEROUS_S, "request_timeout_s": IDLE_S}
    async with asyncio.timeout(GENEROUS_S), serve_gateway(**timeouts) as served:
        served.fakes[THINKER].script = work
        response = await served.chat()
        assert response.status_code == 504
        assert "the request timed out" in response.text
