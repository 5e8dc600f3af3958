"""Truncation of an answer: what a client has heard of it is what the model knows of it."""

from __future__ import annotations

import pytest

from antiphon.values.segment import FinishReason
from tests.contract.fake_stages import ROLES, THINKER, USUAL, Session
from tests.contract.realtime_client import realtime
from tests.contract.served_gateway import ServedGateway
from tests.contract.test_realtime import asked, begin

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_truncation_before_the_end_is_told_holds_when_it_is(served: ServedGateway) -> None:
    for role in ROLES:
        served.fakes[role].script = begin
    async with realtime(served) as client:
        await client.say("Tell me a story")
        await client.send("response.create")
        delta = await client.until_begun()
        await client.send("response.cancel")
        await client.send(
            "conversation.item.truncate",
            item_id=delta["item_id"],
            content_index=0,
            audio_end_ms=400,
        )
        await client.until("response.done")
        await client.say("Stop")
        await client.send("response.create")
        await client.until("response.done")
        assert asked(served)[1:] == [("assistant", ["Once"]), ("user", ["Stop"])]


@pytest.mark.parametrize("cut", ["while it is made", "when it has ended"])
async def test_text_of_a_cancelled_response_is_cut_to_what_can_be_spoken(
    served: ServedGateway, cut: str
) -> None:
    async def ahead(session: Session) -> None:
        if session.role == THINKER:
            await session.opened()
            await session.text("Once upon a time there was a small voice")
            assert await session.cancelled_segment() == 0
            await session.report(FinishReason.CANCELLED)
            await session.next_segment()
            await USUAL[THINKER](session)
        else:
            await begin(session)

    for role in ROLES:
        served.fakes[role].script = ahead
    async with realtime(served) as client:
        await client.say("Tell me a story")
        await client.send("response.create")
        delta = await client.until_begun()
        await client.send("response.cancel")
        if cut == "when it has ended":
            await client.until("response.done")
        # All of the audio was heard, 0.777 s, and the text is ahead of it.
        await client.send(
            "conversation.item.truncate",
            item_id=delta["item_id"],
            content_index=0,
            audio_end_ms=777,
        )
        await client.until("conversation.item.truncated")
        if cut == "while it is made":
            await client.until("response.done")
        await client.say("Stop")
        await client.send("response.create")
        await client.until("response.done")
        assert asked(served)[1:] == [("assistant", ["Once upon a"]), ("user", ["Stop"])]
