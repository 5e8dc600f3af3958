"""User transcripts of `/v1/realtime`: written beside the answers, told when they are ready."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
import pytest

from antiphon.errors import Internal, InvalidArgument
from antiphon.values.conversation import TextPart, from_tensors
from antiphon.values.segment import FinishReason
from antiphon_gateway.conversations.transcripts import MOST_WAITING
from tests.contract.fake_stages import THINKER, Session, think
from tests.contract.realtime_client import Realtime, Told, realtime
from tests.contract.served_gateway import ServedGateway, serve_gateway, tell_anew

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECOND = base64.b64encode(np.zeros(24_000, "<i2").tobytes()).decode()
PREFIX = "conversation.item.input_audio_transcription"
INSTRUCTION = "Transcribe the audio into text."
WISH: dict[str, Any] = {"model": "gpt-4o-mini-transcribe"}


def session(wish: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "type": "realtime",
        "output_modalities": ["text"],
        "audio": {"input": {"transcription": wish, "turn_detection": None}},
    }


async def change(client: Realtime, wish: dict[str, Any] | None) -> Any:
    await client.send("session.update", session=session(wish))
    told = (await client.until("session.updated"))["session"]
    return told["audio"]["input"]["transcription"]


async def speak(client: Realtime) -> str:
    """Commit a second of audio; the id of the item."""
    await client.send("input_audio_buffer.append", audio=SECOND)
    await client.send("input_audio_buffer.commit")
    item_id: str = (await client.until("input_audio_buffer.committed"))["item_id"]
    return item_id


def asks_for_transcript(stage: Session) -> bool:
    assert stage.input is not None
    parts = [p for m in from_tensors(stage.input.tensors).messages for p in m.parts]
    return any(isinstance(each, TextPart) and INSTRUCTION in each.text for each in parts)


class Writer:
    """A thinker that writes down when it is let, and answers at once."""

    def __init__(self, text: tuple[str, ...] = ("Ding ", "dong.")) -> None:
        self.let = asyncio.Event()
        self.begun = asyncio.Event()
        self.running = 0
        self._text = text

    async def __call__(self, stage: Session) -> None:
        if not asks_for_transcript(stage):
            await think(stage)
            return
        self.running += 1
        self.begun.set()
        await stage.opened()
        await self.let.wait()
        for each in self._text:
            await stage.text(each)
        await stage.chunk("text", finish=FinishReason.STOP)
        await stage.report(input_positions=20, input_audio_positions=7, output_positions=3)
        self.running -= 1


async def test_transcript_is_told_with_its_cost_and_kept_with_the_item(
    served: ServedGateway,
) -> None:
    served.fakes[THINKER].script = writer = Writer()
    writer.let.set()
    async with realtime(served) as client:
        held = await change(client, {**WISH, "language": "en", "prompt": "Bells."})
        assert held == {"model": "fake-omni", "language": "en", "prompt": "Bells."}
        item_id = await speak(client)
        completed = await client.until(f"{PREFIX}.completed")
        assert (completed["item_id"], completed["content_index"]) == (item_id, 0)
        assert completed["transcript"] == "Ding dong."
        assert completed["usage"]["type"] == "tokens"
        assert completed["usage"]["input_token_details"] == {"audio_tokens": 7, "text_tokens": 13}
        deltas = [e for e in client.events if e["type"] == f"{PREFIX}.delta"]
        assert [(e["item_id"], e["delta"]) for e in deltas] == [
            (item_id, "Ding "),
            (item_id, "dong."),
        ]
        await client.send("conversation.item.retrieve", item_id=item_id)
        item = (await client.until("conversation.item.retrieved"))["item"]
        assert item["content"][0]["transcript"] == "Ding dong."
        chunk = served.fakes[THINKER].sessions[-1].input
        assert chunk is not None
        (message,) = from_tensors(chunk.tensors).messages
        assert isinstance(message.parts[1], TextPart)
        assert message.parts[1].text.splitlines()[1:] == [
            "The language is en.",
            "What is known of it: Bells.",
        ]
        # The conversation itself has the recording and no transcript.
        await client.send("response.create")
        await client.until("response.done")
        assert not asks_for_transcript(served.fakes[THINKER].sessions[-1])


async def test_answer_does_not_wait_for_the_transcript(served: ServedGateway) -> None:
    served.fakes[THINKER].script = writer = Writer()
    async with realtime(served) as client:
        assert (await change(client, WISH))["model"] == "fake-omni"
        item_id = await speak(client)
        await writer.begun.wait()
        await client.send("response.create")
        done = (await client.until("response.done"))["response"]
        assert done["status"] == "completed"
        writer.let.set()
        assert (await client.until(f"{PREFIX}.completed"))["item_id"] == item_id


async def test_transcripts_come_one_after_the_other_and_are_bounded(served: ServedGateway) -> None:
    served.fakes[THINKER].script = writer = Writer(("x",))
    async with realtime(served) as client:
        await change(client, WISH)
        first = await speak(client)
        await writer.begun.wait()
        waiting = [await speak(client) for _ in range(MOST_WAITING)]
        late = await speak(client)
        failed = await client.until(f"{PREFIX}.failed")
        assert failed["item_id"] == late
        assert failed["error"]["code"] == "resource_exhausted"
        assert writer.running == 1
        writer.let.set()
        told = [(await client.until(f"{PREFIX}.completed"))["item_id"] for _ in [first, *waiting]]
        assert told == [first, *waiting]


@pytest.mark.parametrize(
    ("error", "kind"),
    [(Internal("no ears"), "server_error"), (InvalidArgument("deaf"), "invalid_request_error")],
)
async def test_transcript_that_fails_is_told_and_the_call_goes_on(
    served: ServedGateway, error: Internal | InvalidArgument, kind: str
) -> None:
    async def fail(stage: Session) -> None:
        if not asks_for_transcript(stage):
            await think(stage)
            return
        await stage.opened()
        await stage.error(error)

    served.fakes[THINKER].script = fail
    async with realtime(served) as client:
        await change(client, WISH)
        item_id = await speak(client)
        failed: Told = await client.until(f"{PREFIX}.failed")
        assert (failed["item_id"], failed["error"]["type"]) == (item_id, kind)
        assert error.message in failed["error"]["message"]
        await client.send("response.create")
        assert (await client.until("response.done"))["response"]["status"] == "completed"


async def test_transcripts_are_made_while_they_are_wished_and_heard(served: ServedGateway) -> None:
    async with realtime(served) as client:
        assert await change(client, WISH) is not None
        assert await change(client, None) is None
        await speak(client)
        await client.send("response.create")
        await client.until("response.done")
        assert not any(map(asks_for_transcript, served.fakes[THINKER].sessions))
    told = served.gateway.fleet[THINKER].require()
    told.input_kinds.remove("audio")
    tell_anew(served.gateway)
    try:
        async with realtime(served) as client:
            assert await change(client, WISH) is None
    finally:
        told.input_kinds.append("audio")
        tell_anew(served.gateway)


async def test_client_that_leaves_ends_its_transcript() -> None:
    async with serve_gateway() as served:
        served.fakes[THINKER].script = writer = Writer()
        async with realtime(served) as client:
            await change(client, WISH)
            await speak(client)
            await writer.begun.wait()
        (stage,) = served.fakes[THINKER].sessions
        await stage.ended.wait()
        await served.gateway.calls.wait_idle()


async def test_transcript_of_an_item_that_is_gone_is_told_nevertheless(
    served: ServedGateway,
) -> None:
    served.fakes[THINKER].script = writer = Writer()
    async with realtime(served) as client:
        await change(client, WISH)
        item_id = await speak(client)
        await writer.begun.wait()
        await client.send("conversation.item.delete", item_id=item_id)
        await client.until("conversation.item.deleted")
        writer.let.set()
        assert (await client.until(f"{PREFIX}.completed"))["item_id"] == item_id


async def test_recording_that_is_deleted_before_its_turn_is_not_written_down(
    served: ServedGateway,
) -> None:
    served.fakes[THINKER].script = writer = Writer()
    async with realtime(served) as client:
        await change(client, WISH)
        first = await speak(client)
        await writer.begun.wait()
        second = await speak(client)
        await client.send("conversation.item.delete", item_id=second)
        await client.until("conversation.item.deleted")
        writer.let.set()
        assert (await client.until(f"{PREFIX}.completed"))["item_id"] == first
        failed = await client.until(f"{PREFIX}.failed")
        assert (failed["item_id"], failed["error"]["code"]) == (second, "not_found")
