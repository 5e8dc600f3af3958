"""Turns of a conversation that move to another replica because their own fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.errors import Unavailable
from antiphon.values.conversation import ConversationMessage, TextPart
from antiphon.values.segment import FinishReason
from antiphon_gateway.conversations.kept_session import ConversationSession
from antiphon_gateway.media.options_in import read_options
from antiphon_gateway.orders.order import Order
from antiphon_gateway.sessions.call_segment import CallSegment
from antiphon_gateway.sessions.events import SegmentFinished
from tests.contract.fake_stages import THINKER, FakeStage, Session, think
from tests.contract.replicated_stages import open_replicas

pytestmark = pytest.mark.asyncio(loop_scope="session")

ORDER = Order(
    messages=(ConversationMessage("user", (TextPart("Hi"),)),), outputs=frozenset({"text"})
)


async def test_a_turn_goes_to_another_replica_when_its_own_fails_before_the_answer() -> None:
    """Its opening is told of each, for whoever interrupts it."""
    failed: list[Session] = []

    async def once(session: Session) -> None:
        if not failed:
            failed.append(session)
            await session.opened()
            await session.error(Unavailable("the engine is gone"))
        elif len(opened) < 3:
            await think(session)
        else:
            await session.opened()
            await session.cancelled_segment()
            await session.report(FinishReason.CANCELLED)

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for fake in fakes[THINKER]:
            fake.script = once

    opened: list[CallSegment] = []
    async with asyncio.timeout(120), open_replicas(thinker=2, prepare=prepare) as replicas:
        calls = replicas.gateway.calls
        conversation = ConversationSession(calls, listen_idle_s=600.0)
        async with conversation.turn(ORDER, lambda place: None, opened.append) as segment:
            events = [event async for event in segment]
        assert isinstance(events[-1], SegmentFinished)
        assert replicas.sessions() == [1, 1]
        assert len(opened) == 2
        await conversation.close()
        opened.append(segment)

        conversation = ConversationSession(calls, listen_idle_s=600.0)
        async with conversation.turn(ORDER, lambda place: None, CallSegment.cancel) as segment:
            events = [event async for event in segment]
        assert isinstance(events[-1], SegmentFinished)
        assert events[-1].finish_reason is FinishReason.CANCELLED
        await conversation.close()


async def test_a_turn_opens_a_new_session_when_its_own_is_lost_while_attachments_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for fake in fakes[THINKER]:
            fake.script = think

    async with asyncio.timeout(120), open_replicas(thinker=2, prepare=prepare) as replicas:
        conversation = ConversationSession(replicas.gateway.calls, listen_idle_s=600.0)
        async with conversation.turn(ORDER, lambda place: None) as segment:
            assert [event async for event in segment]
        (holds,) = (each for each in replicas.fakes[THINKER] if each.sessions)
        kept = replicas.replica(holds)

        async def lose(*arguments: Any, **named: Any) -> Any:
            monkeypatch.undo()
            kept.lose("the engine is gone")
            return await read_options(*arguments, **named)

        monkeypatch.setattr("antiphon_gateway.orders.preparing.read_options", lose)
        async with conversation.turn(ORDER, lambda place: None) as segment:
            events = [event async for event in segment]
        assert isinstance(events[-1], SegmentFinished)
        assert replicas.sessions() == [1, 1]
        await conversation.close()


class Listening:
    """A thinker that answers turn after turn, and hears some that are given up."""

    def __init__(self) -> None:
        self.heard, self.given_up = asyncio.Event(), asyncio.Event()

    async def __call__(self, session: Session) -> None:
        await session.opened()
        while True:
            if session.segment.live:
                self.heard.set()
                await session.cancelled_segment()
                await session.report(FinishReason.CANCELLED)
                self.given_up.set()
            else:
                await think(session)
            await session.next_segment()


@pytest.mark.parametrize("drains", [False, True])
async def test_a_turn_that_is_given_up_takes_its_session_along_only_from_a_replica_that_drains(
    drains: bool,
) -> None:
    thinker = Listening()

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for fake in fakes[THINKER]:
            fake.script = thinker

    async with asyncio.timeout(120), open_replicas(thinker=2, prepare=prepare) as replicas:
        conversation = ConversationSession(replicas.gateway.calls, listen_idle_s=600.0)

        async def answer() -> None:
            async with conversation.turn(ORDER, lambda place: None) as segment:
                assert [event async for event in segment]

        await answer()
        home = replicas.fakes[THINKER][replicas.sessions().index(1)]
        conversation.begin_turn(1, 24_000, ORDER)
        await thinker.heard.wait()
        if drains:
            home.tell_load(draining=True)
            await replicas.until(lambda: replicas.replica(home).draining)
            assert not home.sessions[0].ended.is_set(), "it is being heard"
        conversation.forget_turn()
        await thinker.given_up.wait()
        if drains:
            await home.sessions[0].ended.wait()
        await answer()
        assert sorted(replicas.sessions()) == [int(drains), 1]
        await conversation.close()
