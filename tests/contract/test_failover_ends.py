"""How answers end, and go on, when a replica is lost at a moment that matters."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.errors import (
    InvalidArgument,
    Unavailable,
)
from antiphon.values.segment import FinishReason
from antiphon_gateway.orders.order import Order
from antiphon_gateway.sessions.events import Event, SegmentFinished
from tests.contract.failing_stages import (
    LOST,
    ORDER,
    Failing,
    answered,
    begin,
    check_whole,
    failing,
    told_by,
)
from tests.contract.fake_stages import (
    CODE2WAV,
    FRAMES,
    ROLES,
    THINKER,
    FakeStage,
    Session,
    samples_of,
    think,
)
from tests.contract.replicated_stages import open_replicas

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_stage_that_has_done_its_part_is_not_missed() -> None:
    """There is no other replica that could take over, and none has to. Who may still wait for its
    output is told, to miss it if it has not come."""
    heard = asyncio.Event()

    async def leave(session: Session) -> None:
        await think(session)
        await heard.wait()
        await session.abort(Unavailable("the process ends"))

    async def speak_on(session: Session) -> None:
        await begin(session)
        requests = (each async for each in session.requests if each.HasField("gone"))
        gone = (await anext(requests)).gone
        assert (gone.segment, gone.role) == (0, THINKER)
        start = len(samples_of(FRAMES[0], 0))
        for frames in FRAMES[1:]:
            start = await session.audio(frames, start)
        await session.chunk("audio", position=start, finish=FinishReason.STOP)
        await session.report(input_positions=sum(FRAMES), output_positions=start)

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        fakes[THINKER][0].script = leave
        fakes[CODE2WAV][0].script = speak_on

    async with open_replicas(prepare=prepare) as replicas:

        def on_event(events: list[Event]) -> None:
            if told_by(CODE2WAV, events):
                heard.set()

        check_whole(await answered(replicas, on_event))
        assert [len(replicas.fakes[role][0].sessions) for role in ROLES] == [1, 1, 1]


async def test_an_answer_that_no_other_replica_takes_fails_by_what_began_it() -> None:
    """What another one says of the request is nothing to its client, whose answer has begun."""
    script = Failing(THINKER)

    async def refuse(session: Session) -> None:
        if script.left:
            await script(session)
            return
        await session.error(InvalidArgument("this build knows no such thing"))

    async with open_replicas(thinker=2, prepare=failing(THINKER, refuse)) as replicas:
        with pytest.raises(Unavailable, match="the engine is gone"):
            await answered(replicas, lambda events: script.now.set())
        assert replicas.sessions() == [1, 1]


async def test_an_answer_that_was_cancelled_is_not_continued() -> None:
    async def die_of_it(session: Session) -> None:
        await begin(session)
        await session.cancelled_segment()
        await session.error(LOST)

    order = Order(messages=ORDER.messages, outputs=frozenset({"text"}))
    async with open_replicas(thinker=2, prepare=failing(THINKER, die_of_it)) as replicas:
        async with asyncio.timeout(120), replicas.gateway.calls.answer(order) as segment:
            await anext(segment)
            segment.cancel()
            events = [event async for event in segment]
        (last,) = events
        assert isinstance(last, SegmentFinished)
        assert last.finish_reason is FinishReason.CANCELLED
        assert sum(replicas.sessions()) == 1


async def test_an_answer_goes_on_when_its_channel_is_closed() -> None:
    """As the gateway does with one whose certificate may have run out."""
    script = Failing(THINKER)
    closing: list[asyncio.Task[None]] = []
    async with open_replicas(thinker=2, prepare=failing(THINKER, script)) as replicas:

        def close(events: list[Event]) -> None:
            if not closing and told_by(THINKER, events):
                used = replicas.fakes[THINKER][replicas.sessions().index(1)]
                channel = replicas.replica(used).channel
                closing.append(asyncio.create_task(channel.close()))

        check_whole(await answered(replicas, close))
        assert replicas.sessions() == [1, 1]
