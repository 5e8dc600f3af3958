"""Silence after an answer, in which the model is asked again."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.values.segment import FinishReason
from tests.contract.fake_stages import THINKER, USUAL, Session
from tests.contract.realtime_client import hear, realtime
from tests.contract.served_gateway import ServedGateway
from tests.contract.spoken_audio import Heard, silence

pytestmark = pytest.mark.asyncio(loop_scope="session")

VAD = {"type": "server_vad"}


async def test_silence_after_an_answer_asks_the_model_again(served: ServedGateway) -> None:
    async with realtime(served) as client:
        await client.detect_turns({**VAD, "idle_timeout_ms": 200})
        await hear(client, Heard(silence(1.0)))
        await client.say("Hi")
        await client.send("response.create", response={"output_modalities": ["text"]})
        await client.until("response.done")
        late = await client.until("input_audio_buffer.timeout_triggered")
        committed = await client.until("input_audio_buffer.committed")
        assert committed["item_id"] == late["item_id"]
        assert 0 < late["audio_end_ms"] - late["audio_start_ms"] <= 1000
        await client.until("response.done")


async def test_silence_is_not_counted_while_an_answer_that_waited_is_made(
    served: ServedGateway,
) -> None:
    """Which a cancelled one has left the stages to."""
    idle_s = 0.2

    async def slow(session: Session) -> None:
        if session.role != THINKER:
            await USUAL[session.role](session)
            return
        await session.opened()
        await session.text("Once upon")
        assert await session.cancelled_segment() == 0
        await session.report(FinishReason.CANCELLED)
        await session.next_segment()
        # Longer than silence may last.
        await asyncio.sleep(3 * idle_s)
        await USUAL[session.role](session)

    served.fakes[THINKER].script = slow
    async with realtime(served) as client:
        await client.detect_turns({**VAD, "idle_timeout_ms": round(idle_s * 1000)})
        await hear(client, Heard(silence(1.0)))
        await client.say("Tell me a story")
        text = {"output_modalities": ["text"]}
        await client.send("response.create", response=text)
        await client.until("response.output_text.delta")
        await client.send("response.cancel")
        await client.send("response.create", response=text)
        for status in ("cancelled", "completed"):
            assert (await client.until("response.done"))["response"]["status"] == status
        kinds = [event["type"] for event in client.events]
        assert "input_audio_buffer.timeout_triggered" not in kinds
