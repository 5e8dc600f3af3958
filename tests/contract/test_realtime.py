"""`/v1/realtime` as OpenAI's client sees it: turns that the client ends, and their interruption."""

from __future__ import annotations

import asyncio
import base64

import numpy as np
import pytest
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from websockets.asyncio.client import connect

from antiphon.errors import ResourceExhausted, Unavailable
from antiphon.values.conversation import TextPart, from_tensors
from antiphon.values.segment import FinishReason
from tests.contract.fake_stages import (
    CODE2WAV,
    FRAMES,
    ROLES,
    TALKER,
    TEXTS,
    THINKER,
    USUAL,
    Session,
    twice,
)
from tests.contract.realtime_client import Realtime, realtime
from tests.contract.served_gateway import MODEL, ServedGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECOND = base64.b64encode(np.zeros(24_000, "<i2").tobytes()).decode()
SPOKEN_TURN = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_audio.delta",
    "response.output_audio_transcript.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
]


def kinds(client: Realtime, start: int) -> list[str]:
    """The types of events in order of first appearance, both deltas in alphabetical order."""
    told = list(dict.fromkeys(event["type"] for event in client.events[start:]))
    places = [index for index, kind in enumerate(told) if kind.endswith(".delta")]
    for place, kind in zip(places, sorted(told[index] for index in places), strict=True):
        told[place] = kind
    return told


def asked(served: ServedGateway) -> list[tuple[str, list[str]]]:
    """The roles and texts of the conversation that the thinker got last."""
    chunk = served.fakes[THINKER].sessions[-1].input
    assert chunk is not None
    return [
        (m.role, [part.text if isinstance(part, TextPart) else "audio" for part in m.parts])
        for m in from_tensors(chunk.tensors).messages
    ]


async def test_spoken_turn_has_openais_events_in_order(served: ServedGateway) -> None:
    async with realtime(served) as client:
        await client.say("Hi")
        start = len(client.events)
        await client.send("response.create")
        done = (await client.until("response.done"))["response"]
    assert kinds(client, start) == SPOKEN_TURN
    assert (done["status"], done["status_details"]) == ("completed", None)
    assert done["usage"]["output_token_details"] == {"text_tokens": 5, "audio_tokens": sum(FRAMES)}
    assert done["usage"]["input_token_details"]["cached_tokens"] == 4
    (item,) = done["output"]
    assert item["content"] == [{"type": "output_audio", "transcript": "".join(TEXTS)}]
    deltas = [e["delta"] for e in client.events if e["type"] == "response.output_audio.delta"]
    samples = np.frombuffer(b"".join(map(base64.b64decode, deltas)), "<i2")
    assert len(samples) == sum(FRAMES) * 1920 - 555
    ids = [event["event_id"] for event in client.events]
    assert len(set(ids)) == len(ids)


async def test_turns_share_a_session_and_carry_the_conversation(served: ServedGateway) -> None:
    for role in ROLES:
        served.fakes[role].script = twice(USUAL[role])
    async with realtime(served) as client:
        await client.send("session.update", session={"type": "realtime", "instructions": "Be kind"})
        assert (await client.until("session.updated"))["session"]["instructions"] == "Be kind"
        for text in ("One", "Two"):
            await client.say(text)
            await client.send("response.create")
            await client.until("response.done")
        spoken = "".join(TEXTS)
        assert asked(served) == [
            ("system", ["Be kind"]),
            ("user", ["One"]),
            ("assistant", [spoken]),
            ("user", ["Two"]),
        ]
    for role in ROLES:
        (one,) = served.fakes[role].sessions
        await one.ended.wait()
        assert one.half_closed.is_set()


async def test_committed_audio_is_an_item_that_the_thinker_hears(served: ServedGateway) -> None:
    async with realtime(served) as client:
        await client.end_turns_itself()
        await client.send("input_audio_buffer.append", audio=SECOND)
        await client.send("input_audio_buffer.clear")
        await client.until("input_audio_buffer.cleared")
        for _ in range(2):
            await client.send("input_audio_buffer.append", audio=SECOND[:16_000])
        await client.send("input_audio_buffer.commit")
        committed = await client.until("input_audio_buffer.committed")
        added = await client.until("conversation.item.added")
        assert added["item"]["id"] == committed["item_id"]
        await client.send("response.create", response={"output_modalities": ["text"]})
        done = (await client.until("response.done"))["response"]
        assert done["output"][0]["content"] == [{"type": "output_text", "text": "".join(TEXTS)}]
        assert asked(served) == [("user", ["audio"])]
        chunk = served.fakes[THINKER].sessions[-1].input
        assert chunk is not None
        (heard,) = from_tensors(chunk.tensors).recordings
        assert len(heard) == 2 * 6_000 * 16_000 // 24_000
        await client.send("conversation.item.retrieve", item_id=committed["item_id"])
        item = (await client.until("conversation.item.retrieved"))["item"]
        assert len(base64.b64decode(item["content"][0]["audio"])) == 24_000


@pytest.mark.parametrize(
    ("modality", "ending"), [("audio", [("user", [])]), ("text", [])], ids=["spoken", "written"]
)
async def test_response_may_consist_of_instructions(
    served: ServedGateway, modality: str, ending: list[tuple[str, list[str]]]
) -> None:
    """Voice agents greet in this way, and Open WebUI reports its progress. Talkers continue from a
    user message.
    """
    greeting = {
        "conversation": "none",
        "input": [],
        "instructions": "Greet the caller.",
        "output_modalities": [modality],
    }
    async with realtime(served) as client:
        await client.send("response.create", response=greeting)
        done = (await client.until("response.done"))["response"]
        assert done["status"] == "completed"
        assert asked(served) == [("system", ["Greet the caller."]), *ending]
        # Nothing of it is in the conversation.
        await client.say("Hi")
        await client.send("response.create", response={"instructions": "Answer."})
        await client.until("response.done")
        assert asked(served) == [("system", ["Answer."]), ("user", ["Hi"])]


async def begin(session: Session) -> None:
    """Say a little, be cancelled, and answer the next as usual."""
    await session.opened()
    if session.role == THINKER:
        await session.text("Once upon")
    if session.role == CODE2WAV:
        await session.audio(10, 0)
    assert await session.cancelled_segment() == 0
    await session.report(FinishReason.CANCELLED, input_positions=9, output_positions=3)
    await session.next_segment()
    await USUAL[session.role](session)


async def test_cancelled_response_ends_in_order_and_is_cut_to_what_was_heard(
    served: ServedGateway,
) -> None:
    for role in ROLES:
        served.fakes[role].script = begin
    async with realtime(served) as client:
        await client.say("Tell me a story")
        await client.send("response.create")
        await client.until_begun()
        await client.send("response.cancel")
        start = len(client.events)
        done = (await client.until("response.done"))["response"]
        assert "response.output_audio.delta" not in kinds(client, start)
        assert kinds(client, start)[-6:] == SPOKEN_TURN[-6:]
        assert done["status"] == "cancelled"
        assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
        (item,) = done["output"]
        assert (item["status"], item["content"][0]["transcript"]) == ("incomplete", "Once upon")
        # The audio lasts 0.777 s; half of it is "Once" and a piece of a word.
        await client.send(
            "conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=400
        )
        await client.until("conversation.item.truncated")
        await client.send("response.cancel", event_id="mine")
        error = (await client.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "mine")
        await client.say("Stop")
        await client.send("response.create")
        assert (await client.until("response.done"))["response"]["status"] == "completed"
        assert asked(served)[1:] == [("assistant", ["Once"]), ("user", ["Stop"])]
    assert len(served.fakes[TALKER].sessions) == 1


async def test_dead_stage_fails_the_response_and_not_the_connection(served: ServedGateway) -> None:
    async def give_up(session: Session) -> None:
        await session.opened()
        await session.audio(1, 0)
        await session.error(Unavailable("the device is gone"))

    served.fakes[CODE2WAV].script = give_up
    async with realtime(served) as client:
        await client.say("Hi")
        await client.send("response.create")
        done = (await client.until("response.done"))["response"]
        assert done["status"] == "failed"
        assert done["status_details"]["error"]["code"] == "unavailable"
        served.fakes[CODE2WAV].script = USUAL[CODE2WAV]
        await client.say("Again")
        await client.send("response.create")
        assert (await client.until("response.done"))["response"]["status"] == "completed"


async def test_response_without_a_slot_fails_and_the_session_stays(served: ServedGateway) -> None:
    async def full(session: Session) -> None:
        await USUAL[CODE2WAV](session)
        await session.refuse_segment(ResourceExhausted("all 4 slots are taken"))
        await session.next_segment()
        await USUAL[CODE2WAV](session)

    async def give_way(session: Session) -> None:
        await USUAL[session.role](session)
        await session.next_segment()
        await session.cancelled_segment()
        await session.report(FinishReason.CANCELLED)
        await session.next_segment()
        await USUAL[session.role](session)

    served.fakes[CODE2WAV].script = full
    served.fakes[THINKER].script = served.fakes[TALKER].script = give_way
    async with realtime(served) as client:
        await client.say("Hi")
        for status in ("completed", "failed", "completed"):
            await client.send("response.create")
            assert (await client.until("response.done"))["response"]["status"] == status
    assert len(served.fakes[CODE2WAV].sessions) == 1


async def test_response_out_of_band_leaves_no_trace(served: ServedGateway) -> None:
    async with realtime(served) as client:
        await client.say("Secret")
        part = {"type": "input_text", "text": "Classify this"}
        given = {"type": "message", "role": "user", "content": [part]}
        settings = {
            "conversation": "none",
            "metadata": {"topic": "mood"},
            "output_modalities": ["text"],
            "input": [given],
        }
        start = len(client.events)
        await client.send("response.create", response=settings)
        created = (await client.until("response.created"))["response"]
        done = (await client.until("response.done"))["response"]
        assert created["metadata"] == done["metadata"] == {"topic": "mood"}
        assert done["conversation_id"] is None
        assert not {"conversation.item.added", "conversation.item.done"} & set(kinds(client, start))
        assert asked(served) == [("user", ["Classify this"])]


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ({"type": "input_audio_buffer.commit"}, "input_audio_buffer_commit_empty", None),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "invalid_argument", "audio"),
        ({"type": "no.such.event"}, "invalid_argument", "type"),
        ({"type": "response.create"}, "invalid_argument", "response"),
        (
            {"type": "conversation.item.delete", "item_id": "x"},
            "item_delete_invalid_item_id",
            "item_id",
        ),
        (
            {"type": "session.update", "session": {"output_modalities": ["text", "audio"]}},
            "invalid_argument",
            "session.output_modalities",
        ),
        (
            {"type": "session.update", "session": {"output_modalities": ["image"]}},
            "invalid_argument",
            "session.output_modalities",
        ),
        (
            {"type": "conversation.item.create", "item": {"type": "mcp_call"}},
            "not_implemented",
            "item.type",
        ),
        (
            {
                "type": "conversation.item.create",
                "item": {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "x"}] * 300,
                },
            },
            "invalid_argument",
            "item.content",
        ),
        (
            {
                "type": "conversation.item.truncate",
                "item_id": "x",
                "content_index": 0,
                "audio_end_ms": 10**400,
            },
            "invalid_argument",
            "audio_end_ms",
        ),
        ({"type": "conversation.item.retrieve"}, "invalid_argument", "item_id"),
        ({"type": "input_audio_buffer.append"}, "invalid_argument", "audio"),
        (
            {"type": "session.update", "session": {"audio": {"input": {"format": "pcm16"}}}},
            "invalid_argument",
            "session.audio.input.format",
        ),
        (
            {"type": "response.create", "response": {"conversation": "mine"}},
            "invalid_argument",
            "response.conversation",
        ),
        (
            {
                "type": "conversation.item.create",
                "previous_item_id": "gone",
                "item": {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "x"}],
                },
            },
            "invalid_argument",
            "previous_item_id",
        ),
    ],
)
async def test_bad_event_is_told_by_its_id_and_the_call_goes_on(
    served: ServedGateway, event: dict[str, object], code: str, param: str | None
) -> None:
    async with realtime(served) as client:
        await client.connection.send({**event, "event_id": "e1"})  # type: ignore[arg-type]
        error = (await client.until("error"))["error"]
        assert (error["code"], error["param"], error["event_id"]) == (code, param, "e1")
        await client.say("Still here")


async def test_items_stand_where_the_client_puts_them(served: ServedGateway) -> None:
    async with realtime(served) as client:
        await client.say("second")
        await client.say("first", previous_item_id="root")
        await client.say("gone")
        await client.send("conversation.item.delete", item_id=client.events[-1]["item"]["id"])
        await client.until("conversation.item.deleted")
        await client.send("response.create", response={"output_modalities": ["text"]})
        await client.until("response.done")
        assert asked(served) == [("user", ["first"]), ("user", ["second"])]


async def test_unknown_voice_is_answered_by_what_holds(served: ServedGateway) -> None:
    async with realtime(served) as client:
        for voice, holds in (("marin", "chelsie"), ("Ethan", "ethan")):
            audio = {"output": {"voice": voice}}
            await client.send("session.update", session={"type": "realtime", "audio": audio})
            updated = await client.next()
            assert updated["type"] == "session.updated"
            assert updated["session"]["audio"]["output"]["voice"] == holds
        await client.say("Hi")
        await client.send("response.create")
        await client.until("response.done")
        assert served.fakes[TALKER].sessions[-1].segment.voice == "ethan"


async def test_second_response_while_one_is_made_is_refused(served: ServedGateway) -> None:
    for role in ROLES:
        served.fakes[role].script = begin
    async with realtime(served) as client:
        await client.say("Hi")
        await client.send("response.create")
        await client.until("response.output_audio.delta")
        await client.send("response.create")
        error = (await client.until("error"))["error"]
        assert error["code"] == "conversation_already_has_active_response"


async def test_client_that_leaves_frees_every_stage(served: ServedGateway) -> None:
    stuck = asyncio.Event()

    async def begin_and_wait(session: Session) -> None:
        await session.opened()
        if session.role == CODE2WAV:
            await session.audio(1, 0)
        await stuck.wait()

    for role in ROLES:
        served.fakes[role].script = begin_and_wait
    url = f"ws://{served.gateway.http_address}/v1/realtime?model={MODEL}"
    async with connect(url) as connection:
        client = Realtime(AsyncRealtimeConnection(connection))
        await client.until("session.created")
        await client.say("Hi")
        await client.send("response.create")
        await client.until("response.output_audio.delta")
        connection.transport.abort()
    for session in served.fakes.sessions():
        await session.cancelled.wait()
    await served.gateway.calls.wait_idle()
