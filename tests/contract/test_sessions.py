"""Several segments in a row on one session of the gateway, without a door."""

from __future__ import annotations

import pytest
from fake_stages import (
    CODE2WAV,
    FRAMES,
    ROLES,
    TALKER,
    TEXTS,
    THINKER,
    USUAL,
    Session,
    make_waves,
    twice,
)
from gateway_door import Door

from antiphon.conversation import ConversationMessage, TextPart
from antiphon.errors import FailedPrecondition, Unavailable
from gateway.calls.events import AudioProduced, Event, SegmentFinished, SegmentStarted, TextProduced
from gateway.calls.order import Order

pytestmark = pytest.mark.asyncio(loop_scope="session")

BOTH = frozenset({"text", "audio"})


def order(text: str) -> Order:
    return Order(messages=(ConversationMessage("user", (TextPart(text),)),))


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextProduced))


async def test_segments_follow_each_other_on_one_session(door: Door) -> None:
    for role in ROLES:
        door.fakes[role].script = twice(USUAL[role])
    calls = door.gateway.calls
    heard = []
    async with calls.session(BOTH) as session:
        for last in (False, True):
            segment = await session.ask(order(f"last: {last}"), last=last)
            events = [event async for event in segment]
            assert isinstance(events[0], SegmentStarted)
            assert isinstance(events[-1], SegmentFinished)
            assert events[-1].usage.completion_audio_frames == sum(FRAMES)
            assert text_of(events) == "".join(TEXTS)
            spoken = [event for event in events if isinstance(event, AudioProduced)]
            assert spoken[0].first_sample == 0
            asked = door.fakes[THINKER].sessions[0].input
            assert asked is not None
            heard.append((asked.segment, asked.sequence, asked.segment_finished, asked.finished))
            for stage in door.fakes.sessions():
                assert (stage.segment.segment, stage.segment.last) == (segment.number, last)
                # Between segments the stages keep the session.
                assert last or not stage.half_closed.is_set()
        with pytest.raises(FailedPrecondition, match="after the last one"):
            await session.ask(order("too late"), last=False)
    assert heard == [(0, 0, True, False), (1, 1, True, True)]
    for role in ROLES:
        (one,) = door.fakes[role].sessions
        await one.ended.wait()
        assert one.half_closed.is_set()
    await calls.wait_idle()


async def test_session_that_is_left_between_segments_ends_in_order(door: Door) -> None:
    async with door.gateway.calls.session(BOTH) as session:
        segment = await session.ask(order("Hi"), last=False)
        with pytest.raises(FailedPrecondition, match="another is open"):
            await session.ask(order("Me too"), last=False)
        assert text_of([event async for event in segment]) == "".join(TEXTS)
    for stage in door.fakes.sessions():
        await stage.ended.wait()
        assert stage.half_closed.is_set()


async def test_segment_is_refused_when_a_stage_was_lost_between_segments(door: Door) -> None:
    async def give_up(session: Session) -> None:
        await make_waves(session)
        async for _ in session.requests:
            await session.error(Unavailable("the link broke"))

    for role in (THINKER, TALKER):
        door.fakes[role].script = twice(USUAL[role])
    door.fakes[CODE2WAV].script = give_up
    async with door.gateway.calls.session(BOTH) as session:
        assert [event async for event in await session.ask(order("Hi"), last=False)]
        again = await session.ask(order("Again"), last=False)
        with pytest.raises(Unavailable, match="the link broke") as caught:
            assert [event async for event in again]
        assert caught.value.stage == CODE2WAV
        with pytest.raises(Unavailable, match="the link broke"):
            await session.ask(order("Once more"), last=False)
