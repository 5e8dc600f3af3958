"""Turns that the gateway detects: where they begin and end, and what is done about them."""

from __future__ import annotations

import asyncio
import base64

import pytest

from antiphon.values.conversation import from_tensors
from antiphon.values.segment import FinishReason
from tests.contract.fake_stages import CODE2WAV, ROLES, THINKER, USUAL, Session, twice
from tests.contract.realtime_client import Realtime, Told, hear, realtime
from tests.contract.served_gateway import ServedGateway, serve_gateway
from tests.contract.spoken_audio import NAMES, RATE_HZ, Heard, sentence, silence, spoken

pytestmark = pytest.mark.asyncio(loop_scope="session")

VAD = {"type": "server_vad"}
QUIET = {**VAD, "create_response": False, "interrupt_response": False}
PADDING_MS, SILENCE_MS = 300, 500
TOLERANCE_MS = 150


async def settle(client: Realtime) -> None:
    """Wait until everything that was sent has been dealt with."""
    await client.send("conversation.item.delete", item_id="none")
    assert (await client.until("error"))["error"]["code"] == "item_delete_invalid_item_id"


def of_kind(client: Realtime, kind: str) -> list[Told]:
    return [event for event in client.events if event["type"] == kind]


@pytest.mark.parametrize("piece_s", [0.02, 0.5])
async def test_espeak_in_noise_is_heard_sentence_by_sentence(
    served: ServedGateway, piece_s: float
) -> None:
    heard = spoken([*map(sentence, NAMES)], before_s=0.7, after_s=0.8, snr_db=20)
    async with realtime(served) as client:
        await client.detect_turns(QUIET)
        await hear(client, heard, piece_s)
        await settle(client)
        started = of_kind(client, "input_audio_buffer.speech_started")
        stopped = of_kind(client, "input_audio_buffer.speech_stopped")
        assert len(started) == len(stopped) == len(NAMES)
        for begun, ended, (from_s, to_s) in zip(started, stopped, heard.speech, strict=True):
            assert abs(begun["audio_start_ms"] + PADDING_MS - from_s * 1000) <= TOLERANCE_MS
            assert abs(ended["audio_end_ms"] - SILENCE_MS - to_s * 1000) <= TOLERANCE_MS
        for begun, ended in zip(started, stopped, strict=True):
            await client.send("conversation.item.retrieve", item_id=begun["item_id"])
            item = (await client.until("conversation.item.retrieved"))["item"]
            audio = base64.b64decode(item["content"][0]["audio"])
            expected_ms = ended["audio_end_ms"] - begun["audio_start_ms"]
            assert abs(len(audio) * 1000 / (2 * RATE_HZ) - expected_ms) <= 1


async def test_turn_that_begins_in_the_audio_in_which_another_ends_has_its_end(
    served: ServedGateway,
) -> None:
    heard = spoken([sentence("slow", 0.8)] * 2, before_s=0.5, after_s=0.8, snr_db=30)
    # Up to where the second is spoken.
    cut = round((heard.speech[1][0] + 0.3) * RATE_HZ)
    async with realtime(served) as client:
        await client.detect_turns(QUIET)
        await hear(client, Heard(heard.samples[:cut]), 60.0)
        await hear(client, Heard(heard.samples[cut:]))
        await hear(client, Heard(silence(1.0)))
        await settle(client)
        edges = [e for e in client.events if "speech_st" in e["type"]]
        kinds = [e["type"].removeprefix("input_audio_buffer.speech_") for e in edges]
        assert kinds == ["started", "stopped"] * 2
        ids = [e["item_id"] for e in edges]
        assert ids[0] == ids[1] != ids[2] == ids[3]


@pytest.fixture
def word() -> Heard:
    """As much as the fake thinker hears."""
    return spoken([sentence("slow", 0.8)], before_s=0.5, after_s=0.8, snr_db=30)


async def begin(session: Session) -> None:
    """Say a little, be cancelled, and answer the next as usual."""
    await session.opened()
    if session.role == THINKER:
        await session.text("Once upon")
    if session.role == CODE2WAV:
        await session.audio(10, 0)
    assert await session.cancelled_segment() == 0
    if session.role == CODE2WAV:
        # What was on its way when the cancel came.
        await session.audio(10, 10 * 1920 - 555)
    await session.report(FinishReason.CANCELLED, input_positions=9, output_positions=3)
    await session.next_segment()
    await USUAL[session.role](session)


async def test_speech_stops_the_answer_and_is_answered(served: ServedGateway, word: Heard) -> None:
    for role in ROLES:
        served.fakes[role].script = begin
    async with realtime(served) as client:
        await client.say("Tell me a story")
        await client.send("response.create")
        await client.until("response.output_audio.delta")
        await hear(client, word)
        await client.until("input_audio_buffer.speech_started")
        start = len(client.events)
        done = (await client.until("response.done"))["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        kinds = [event["type"] for event in client.events[start:]]
        assert not [kind for kind in kinds if kind.endswith(".delta")]
        # The next one comes after the end of this one.
        assert "response.created" not in kinds
        assert (await client.until("response.done"))["response"]["status"] == "completed"


async def test_answer_waits_until_the_stages_have_let_the_interrupted_one_go(
    served: ServedGateway, word: Heard
) -> None:
    """And has then in its conversation what was said of that one."""
    let_go = asyncio.Event()

    async def hold(session: Session) -> None:
        await session.opened()
        if session.role == THINKER:
            await session.text("Once upon")
        if session.role == CODE2WAV:
            await session.audio(10, 0)
        assert await session.cancelled_segment() == 0
        await let_go.wait()
        await session.report(FinishReason.CANCELLED)
        await session.next_segment()
        await USUAL[session.role](session)

    for role in ROLES:
        served.fakes[role].script = hold
    async with realtime(served) as client:
        await client.say("Tell me a story")
        await client.send("response.create")
        await client.until("response.output_audio_transcript.delta")
        await hear(client, word)
        await client.until("input_audio_buffer.committed")
        await client.until("conversation.item.done")
        await settle(client)
        # What a client asks for meanwhile waits, too, but not any number of times.
        await client.send("response.create")
        assert "active_response" in (await client.until("error"))["error"]["code"]
        let_go.set()
        start = len(client.events)
        await client.until("response.done")
        assert "response.created" not in {event["type"] for event in client.events[start:]}
        assert (await client.until("response.done"))["response"]["status"] == "completed"
    chunk = served.fakes[THINKER].sessions[-1].input
    assert chunk is not None
    roles = [message.role for message in from_tensors(chunk.tensors).messages]
    assert roles == ["user", "assistant", "user"]


async def test_speech_does_not_stop_the_answer_where_it_must_not(
    served: ServedGateway, word: Heard
) -> None:
    heard_all = asyncio.Event()

    async def speak_on(session: Session) -> None:
        await session.opened()
        await session.audio(10, 0)
        await heard_all.wait()
        await session.audio(10, 10 * 1920 - 555, FinishReason.STOP)
        await session.report()

    served.fakes[CODE2WAV].script = speak_on
    async with realtime(served) as client:
        await client.detect_turns(QUIET)
        await client.say("Tell me a story")
        await client.send("response.create")
        await client.until("response.output_audio.delta")
        await hear(client, word)
        await client.until("input_audio_buffer.committed")
        heard_all.set()
        assert (await client.until("response.done"))["response"]["status"] == "completed"
    kind = "response.output_audio.delta"
    said = b"".join(base64.b64decode(e["delta"]) for e in client.events if e["type"] == kind)
    assert len(said) == 2 * (20 * 1920 - 555), "all of it"


async def test_silence_is_kept_no_longer_than_the_next_turn_needs(served: ServedGateway) -> None:
    async with realtime(served) as client:
        await client.detect_turns(QUIET)
        await hear(client, Heard(silence(30.0)), 1.0)
        await client.send("input_audio_buffer.commit")
        item_id = (await client.until("input_audio_buffer.committed"))["item_id"]
        await client.send("conversation.item.retrieve", item_id=item_id)
        item = (await client.until("conversation.item.retrieved"))["item"]
        kept_s = len(base64.b64decode(item["content"][0]["audio"])) / (2 * RATE_HZ)
        assert 0.3 <= kept_s <= 0.6


async def test_turn_that_is_as_long_as_a_recording_may_be_ends_there() -> None:
    heard = spoken([sentence("slow")] * 2, before_s=0.0, after_s=0.0, snr_db=40)
    async with serve_gateway(max_recording_s=2.0) as served, realtime(served) as client:
        await client.detect_turns(QUIET)
        await hear(client, heard)
        await client.until("input_audio_buffer.speech_stopped")
        await client.until("input_audio_buffer.speech_started")


async def test_audio_that_is_longer_than_a_recording_may_be_loses_no_turn() -> None:
    begun = spoken([sentence("slow", 0.8)], before_s=0.5, after_s=0.0, snr_db=30)
    async with serve_gateway(max_recording_s=2.0) as served, realtime(served) as client:
        await client.detect_turns(QUIET)
        await hear(client, begun)
        started = await client.until("input_audio_buffer.speech_started")
        await hear(client, Heard(silence(3.0)), seconds=3.0)
        assert (await client.until("error"))["error"]["param"] == "audio"
        await hear(client, Heard(silence(1.0)))
        stopped = await client.until("input_audio_buffer.speech_stopped")
        assert stopped["item_id"] == started["item_id"]
        assert (await client.until("input_audio_buffer.committed"))["item_id"] == stopped["item_id"]


async def test_clear_and_commit_end_a_turn_that_is_being_heard(
    served: ServedGateway, word: Heard
) -> None:
    begun = spoken([sentence("slow", 0.8)], before_s=0.5, after_s=0.0, snr_db=30)
    async with realtime(served) as client:
        await client.detect_turns(QUIET)
        await hear(client, begun)
        started = await client.until("input_audio_buffer.speech_started")
        await client.send("input_audio_buffer.commit")
        committed = await client.until("input_audio_buffer.committed")
        assert committed["item_id"] == started["item_id"]
        await hear(client, Heard(silence(1.0)))
        await hear(client, begun)
        await client.until("input_audio_buffer.speech_started")
        await client.send("input_audio_buffer.clear")
        await client.until("input_audio_buffer.cleared")
        await hear(client, Heard(silence(1.0)))
        await settle(client)
        assert not of_kind(client, "input_audio_buffer.speech_stopped")
        await hear(client, word)
        await client.until("input_audio_buffer.speech_stopped")


async def test_turn_that_finds_no_room_is_told_and_the_call_goes_on(word: Heard) -> None:
    async with serve_gateway(max_parts=1) as served, realtime(served) as client:
        await client.say("One")
        await hear(client, word)
        error = (await client.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("resource_exhausted", None)
        await client.send("conversation.item.delete", item_id=client.events[2]["item"]["id"])
        await client.until("conversation.item.deleted")


@pytest.mark.parametrize(
    ("asked", "holds"),
    [
        (None, None),
        (
            VAD,
            {
                **VAD,
                "threshold": 0.5,
                "prefix_padding_ms": 300,
                "silence_duration_ms": 500,
                "idle_timeout_ms": None,
                "create_response": True,
                "interrupt_response": True,
            },
        ),
        (
            {"type": "semantic_vad"},
            {
                "type": "semantic_vad",
                "eagerness": "auto",
                "silence_duration_ms": 700,
                "create_response": True,
                "interrupt_response": True,
            },
        ),
        (
            {"type": "semantic_vad", "eagerness": "high", "create_response": False},
            {
                "type": "semantic_vad",
                "eagerness": "high",
                "silence_duration_ms": 400,
                "create_response": False,
                "interrupt_response": True,
            },
        ),
    ],
    ids=["none", "server", "semantic", "eager"],
)
async def test_turn_detection_is_told_as_it_holds(
    served: ServedGateway, asked: Told | None, holds: Told | None
) -> None:
    async with realtime(served) as client:
        await client.detect_turns(asked)
        assert client.events[-1]["session"]["audio"]["input"]["turn_detection"] == holds


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"type": "clever_vad"}, "type"),
        ({**VAD, "threshold": 1.5}, "threshold"),
        ({**VAD, "silence_duration_ms": 0}, "silence_duration_ms"),
        ({**VAD, "idle_timeout_ms": 10**9}, "idle_timeout_ms"),
        ({"type": "semantic_vad", "eagerness": "extreme"}, "eagerness"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_turn_detection_that_cannot_be_is_refused(
    served: ServedGateway, asked: Told, param: str
) -> None:
    async with realtime(served) as client:
        session = {"type": "realtime", "audio": {"input": {"turn_detection": asked}}}
        await client.send("session.update", session=session)
        error = (await client.until("error"))["error"]
        assert error["param"] == f"session.audio.input.turn_detection.{param}"


@pytest.mark.parametrize(
    "session",
    [
        {
            "type": "realtime",
            "model": "gpt-realtime",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "transcription": {"model": "gpt-4o-mini-transcribe"},
                    "turn_detection": {"type": "semantic_vad"},
                    "noise_reduction": None,
                },
                "output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "ash"},
            },
            "tools": [],
            "tool_choice": "auto",
        },
        {"type": "realtime", "tracing": "auto"},
        {
            "type": "realtime",
            "output_modalities": ["audio"],
            "tracing": None,
            "include": ["item.input_audio_transcription.logprobs"],
            "truncation": "auto",
            "prompt": None,
            "audio": {
                "input": {
                    "noise_reduction": {"type": "near_field"},
                    "transcription": {"model": "whisper-1", "language": "en", "prompt": "x"},
                    "turn_detection": {**VAD, "threshold": 0.6, "idle_timeout_ms": None},
                },
                "output": {"voice": {"id": "voice_1"}, "speed": 1.2},
            },
        },
    ],
    ids=["agents", "tracing", "livekit"],
)
async def test_what_clients_send_first_is_accepted(served: ServedGateway, session: Told) -> None:
    for role in ROLES:
        served.fakes[role].script = twice(USUAL[role])
    async with realtime(served) as client:
        await client.send("session.update", session=session)
        updated = await client.next()
        assert updated["type"] == "session.updated"
        # The voice that stands for OpenAI's, or the one that holds where the name is not known.
        assert updated["session"]["audio"]["output"]["voice"] in ("chelsie", "ethan")
        for tone in ({"instructions": None}, {"metadata": {"client_event_id": "x"}}):
            await client.say("Hi")
            await client.send("response.create", response=tone)
            done = await client.until("response.done")
            assert done["response"]["status"] == "completed"


async def test_change_of_format_and_of_turn_detection_drops_audio_of_the_other_rate(
    served: ServedGateway,
) -> None:
    async with realtime(served) as client:
        await client.detect_turns(QUIET)
        await hear(client, Heard(silence(0.2)))
        audio = {"input": {"format": {"type": "audio/pcmu"}, "turn_detection": VAD}}
        await client.send("session.update", session={"type": "realtime", "audio": audio})
        await client.until("session.updated")
        await client.send(
            "input_audio_buffer.append", audio=base64.b64encode(b"\xff" * 800).decode()
        )
        await client.send("input_audio_buffer.commit")
        await client.until("input_audio_buffer.committed")
