"""Several segments in a row on one session of the gateway, without an endpoint."""

from __future__ import annotations

import pytest

from antiphon.errors import FailedPrecondition, ResourceExhausted, Unavailable
from antiphon.values.conversation import ConversationMessage, TextPart
from antiphon.values.segment import FinishReason
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.orders.order import Order
from antiphon_gateway.orders.prepared import PreparedRequest
from antiphon_gateway.sessions.events import (
    AudioProduced,
    Event,
    SegmentFinished,
    SegmentStarted,
    TextProduced,
)
from tests.contract.fake_stages import (
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
from tests.contract.served_gateway import ServedGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

BOTH = frozenset({"text", "audio"})


async def request(calls: Calls, text: str) -> PreparedRequest:
    message = ConversationMessage("user", (TextPart(text),))
    return await calls.prepare(Order(messages=(message,), outputs=BOTH))


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextProduced))


async def test_segments_follow_each_other_on_one_session(served: ServedGateway) -> None:
    for role in ROLES:
        served.fakes[role].script = twice(USUAL[role])
    calls = served.gateway.calls
    heard = []
    async with calls.session(await request(calls, "Hi")) as session:
        for last in (False, True):
            segment = await session.ask(await request(calls, f"last: {last}"), last=last)
            events = [event async for event in segment]
            assert isinstance(events[0], SegmentStarted)
            assert isinstance(events[-1], SegmentFinished)
            assert events[-1].usage.completion_audio_frames == sum(FRAMES)
            assert text_of(events) == "".join(TEXTS)
            spoken = [event for event in events if isinstance(event, AudioProduced)]
            assert spoken[0].first_sample == 0
            asked = served.fakes[THINKER].sessions[0].input
            assert asked is not None
            heard.append((asked.segment, asked.sequence, asked.segment_finished, asked.finished))
            for stage in served.fakes.sessions():
                assert (stage.segment.segment, stage.segment.last) == (segment.number, last)
                # Between segments the stages keep the session.
                assert last or not stage.half_closed.is_set()
        with pytest.raises(FailedPrecondition, match="after the last one"):
            await session.ask(await request(calls, "too late"), last=False)
    assert heard == [(0, 0, True, False), (1, 1, True, True)]
    for role in ROLES:
        (one,) = served.fakes[role].sessions
        await one.ended.wait()
        assert one.half_closed.is_set()
    await calls.wait_idle()


async def test_session_that_is_left_between_segments_ends_in_order(served: ServedGateway) -> None:
    calls = served.gateway.calls
    async with calls.session(await request(calls, "Hi")) as session:
        segment = await session.ask(await request(calls, "Hi"), last=False)
        with pytest.raises(FailedPrecondition, match="another is open"):
            await session.ask(await request(calls, "Me too"), last=False)
        assert text_of([event async for event in segment]) == "".join(TEXTS)
    for stage in served.fakes.sessions():
        await stage.ended.wait()
        assert stage.half_closed.is_set()


async def test_segment_is_refused_when_a_stage_was_lost_between_segments(
    served: ServedGateway,
) -> None:
    async def give_up(session: Session) -> None:
        await make_waves(session)
        async for _ in session.requests:
            await session.error(Unavailable("the link broke"))

    for role in (THINKER, TALKER):
        served.fakes[role].script = twice(USUAL[role])
    served.fakes[CODE2WAV].script = give_up
    calls = served.gateway.calls
    async with calls.session(await request(calls, "Hi")) as session:
        assert [event async for event in await session.ask(await request(calls, "Hi"), last=False)]
        again = await session.ask(await request(calls, "Again"), last=False)
        with pytest.raises(Unavailable, match="the link broke") as caught:
            assert [event async for event in again]
        assert caught.value.stage == CODE2WAV
        with pytest.raises(Unavailable, match="the link broke"):
            await session.ask(await request(calls, "Once more"), last=False)


async def interrupted(session: Session) -> None:
    """Begin, be cancelled, send a little more and report; then answer the next as usual."""
    await session.opened()
    if session.role == THINKER:
        await session.text("Hello")
    if session.role == CODE2WAV:
        await session.audio(1, 0)
    assert await session.cancelled_segment() == 0
    if session.role == CODE2WAV:
        # Was on its way already.
        await session.audio(1, 1365)
    await session.report(FinishReason.CANCELLED, input_positions=20, output_positions=3)
    await session.next_segment()
    await USUAL[session.role](session)


async def test_cancelled_segment_yields_no_more_and_the_next_is_whole(
    served: ServedGateway,
) -> None:
    for role in ROLES:
        served.fakes[role].script = interrupted
    calls = served.gateway.calls
    async with calls.session(await request(calls, "Hi")) as session:
        segment = await session.ask(await request(calls, "Tell me a story"), last=False)
        begun: list[Event] = []
        async for event in segment:
            begun.append(event)
            if {TextProduced, AudioProduced} <= {type(each) for each in begun}:
                segment.cancel()
                segment.cancel()
                break
        with pytest.raises(FailedPrecondition, match="another is open"):
            await session.ask(await request(calls, "too early"), last=False)
        rest = [event async for event in segment]
        (finished,) = rest
        assert isinstance(finished, SegmentFinished)
        assert finished.finish_reason is FinishReason.CANCELLED
        assert finished.usage.completion_tokens == 3
        assert set(finished.reports) == set(ROLES)
        segment.cancel()
        again = await session.ask(await request(calls, "Go on"), last=True)
        events = [event async for event in again]
        assert text_of(events) == "".join(TEXTS)
        assert isinstance(events[-1], SegmentFinished)
        assert events[-1].finish_reason is FinishReason.STOP
        assert events[-1].usage.completion_audio_frames == sum(FRAMES)


async def test_segment_that_finds_no_slot_leaves_the_session(served: ServedGateway) -> None:
    async def give_way(session: Session) -> None:
        await USUAL[session.role](session)
        await session.next_segment()
        assert await session.cancelled_segment() == 1
        await session.report(FinishReason.CANCELLED)
        await session.next_segment()
        await USUAL[session.role](session)

    async def be_full(session: Session) -> None:
        await make_waves(session)
        await session.refuse_segment(ResourceExhausted("full", retry_after_s=3.0))
        await session.next_segment()
        await make_waves(session)

    for role in (THINKER, TALKER):
        served.fakes[role].script = give_way
    served.fakes[CODE2WAV].script = be_full
    calls = served.gateway.calls
    async with calls.session(await request(calls, "Hi")) as session:
        assert [event async for event in await session.ask(await request(calls, "Hi"), last=False)]
        refused = await session.ask(await request(calls, "And?"), last=False)
        with pytest.raises(ResourceExhausted, match="full") as caught:
            assert [event async for event in refused]
        assert caught.value.retry_after_s == 3.0
        assert [event async for event in refused] == []
        events = [
            event async for event in await session.ask(await request(calls, "Now?"), last=True)
        ]
        assert text_of(events) == "".join(TEXTS)
