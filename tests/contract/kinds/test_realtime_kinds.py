"""What published realtime clients send, by sender, and the right answer."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.contract.realtime_client import Realtime, hear, realtime
from tests.contract.served_gateway import ServedGateway
from tests.contract.spoken_audio import Heard, sentence, silence

pytestmark = pytest.mark.asyncio(loop_scope="session")

Told = dict[str, Any]

TWILIO: Told = {
    "turn_detection": {"type": "server_vad"},
    "input_audio_format": "g711_ulaw",
    "output_audio_format": "g711_ulaw",
    "voice": "chelsie",
    "instructions": "Be brief.",
    "modalities": ["text", "audio"],
    "temperature": 0.8,
}
OLD_PIPECAT: Told = {
    "modalities": ["audio", "text"],
    "input_audio_format": "pcm16",
    "output_audio_format": "pcm16",
    "input_audio_transcription": {"model": "whisper-1"},
    "turn_detection": None,
    "max_response_output_tokens": 400,
}


def held(session: Told) -> Told:
    """What the client can see of what holds, by the beta's names."""
    given, made = session["audio"]["input"], session["audio"]["output"]
    return {
        "input": given["format"]["type"],
        "output": made["format"]["type"],
        "turns": given["turn_detection"] and given["turn_detection"]["type"],
        "transcribed": given["transcription"] is not None,
        "voice": made["voice"],
        "modalities": session["output_modalities"],
        "most": session["max_output_tokens"],
    }


PCM, ULAW = "audio/pcm", "audio/pcmu"


@pytest.mark.parametrize(
    ("asked", "right"),
    [
        pytest.param(
            TWILIO,
            {
                "input": ULAW,
                "output": ULAW,
                "turns": "server_vad",
                "voice": "chelsie",
                "modalities": ["audio"],
            },
            id="Twilio's samples",
        ),
        pytest.param(
            OLD_PIPECAT,
            {"input": PCM, "output": PCM, "turns": None, "modalities": ["audio"], "most": 400},
            id="Pipecat before 0.0.80",
        ),
        pytest.param({"modalities": ["text"]}, {"modalities": ["text"]}, id="text alone"),
        pytest.param(
            {"modalities": ["text"], "output_modalities": ["audio"]},
            {"modalities": ["audio"]},
            id="both APIs at once: today's counts",
        ),
        pytest.param({"max_response_output_tokens": "inf"}, {"most": "inf"}, id="no limit"),
    ],
)
async def test_flat_settings_of_the_beta_hold(
    served: ServedGateway, asked: Told, right: Told
) -> None:
    async with realtime(served) as client:
        await client.send("session.update", session=asked)
        session = (await client.until("session.updated"))["session"]
        assert held(session) | right == held(session)


async def test_flat_settings_of_one_response_hold(served: ServedGateway) -> None:
    async with realtime(served) as client:
        await client.say("Hi")
        await client.send("response.create", response={"modalities": ["text"]})
        done = (await client.until("response.done"))["response"]
        assert done["output_modalities"] == ["text"]


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"input_audio_format": "mp3"}, "session.input_audio_format"),
        ({"modalities": ["video"]}, "session.modalities"),
    ],
)
async def test_flat_settings_that_cannot_be_name_their_field(
    served: ServedGateway, session: Told, param: str
) -> None:
    async with realtime(served) as client:
        await client.send("session.update", session=session)
        error = (await client.until("error"))["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (
            {"type": "conversation.item.truncate", "content_index": 0, "audio_end_ms": 0},
            "item_truncate_invalid_item_id",
        ),
        ({"type": "conversation.item.delete"}, "item_delete_invalid_item_id"),
        ({"type": "conversation.item.retrieve"}, "item_retrieve_invalid_item_id"),
    ],
)
async def test_items_that_are_gone_have_openais_codes(
    served: ServedGateway, event: Told, code: str
) -> None:
    """openai-agents and Pipecat end on errors that they do not know."""
    async with realtime(served) as client:
        await client.send(**{"kind": event.pop("type"), **event}, item_id="gone")
        error = (await client.until("error"))["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", code)


async def test_what_is_not_supported_is_no_server_error(served: ServedGateway) -> None:
    async with realtime(served) as client:
        await client.send("conversation.item.create", item={"type": "mcp_call"})
        assert (await client.until("error"))["error"]["type"] == "invalid_request_error"


async def recorded(client: Realtime, served: ServedGateway) -> int:
    """How many samples the model gets of what was appended."""
    await client.send("input_audio_buffer.commit")
    item_id = (await client.until("conversation.item.added"))["item"]["id"]
    await client.send("conversation.item.retrieve", item_id=item_id)
    item = (await client.until("conversation.item.retrieved"))["item"]
    return len(base64.b64decode(item["content"][0]["audio"])) // 2


@pytest.mark.parametrize("cut", [1, 3, 4801, 7201])
async def test_audio_cut_at_odd_bytes_is_whole(served: ServedGateway, cut: int) -> None:
    """pipecat#4952: each piece may end in the middle of a sample."""
    pcm16 = bytes(range(256)) * 75
    async with realtime(served) as client:
        await client.end_turns_itself()
        start, size = 0, cut if cut > 1 else 1
        pieces = [pcm16[:size], *(pcm16[at : at + 6401] for at in range(size, len(pcm16), 6401))]
        for piece in pieces:
            audio = base64.b64encode(piece).decode()
            await client.send("input_audio_buffer.append", audio=audio)
            start += len(piece)
        assert await recorded(client, served) == len(pcm16) // 2


async def test_half_a_sample_is_forgotten_with_its_buffer(served: ServedGateway) -> None:
    async with realtime(served) as client:
        await client.end_turns_itself()
        for piece in (b"\1\2\3", b"\4\5\6\7"):
            audio = base64.b64encode(piece).decode()
            await client.send("input_audio_buffer.append", audio=audio)
            await client.send("input_audio_buffer.clear")
        await client.send("input_audio_buffer.append", audio=base64.b64encode(b"\1\2" * 9).decode())
        assert await recorded(client, served) == 9


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("user", {"type": "text", "text": "Hi"}),
        ("system", {"type": "text", "text": "Hi"}),
        ("assistant", {"type": "text", "text": "Hi"}),
        ("assistant", {"type": "input_text", "text": "Hi"}),
        ("user", {"type": "input_text", "text": ""}),
        ("user", {"type": "input_text"}),
    ],
)
async def test_older_content_types_and_empty_texts_are_taken(
    served: ServedGateway, role: str, part: Told
) -> None:
    async with realtime(served) as client:
        item = {"type": "message", "role": role, "content": [part]}
        await client.send("conversation.item.create", item=item)
        await client.until("conversation.item.done")
        await client.say("And now?")
        await client.send("response.create", response={"output_modalities": ["text"]})
        assert (await client.until("response.done"))["response"]["status"] == "completed"


async def test_a_turn_ends_when_audio_stops_coming(served: ServedGateway) -> None:
    """WhisperLiveKit and Twilio send only while somebody speaks: no silence is ever sent."""
    async with realtime(served) as client:
        await client.detect_turns({"type": "server_vad", "silence_duration_ms": 200})
        await hear(client, Heard(silence(0.5)))
        await hear(client, Heard(sentence("slow", 0.8)))
        await client.until("input_audio_buffer.speech_started")
        await client.until("input_audio_buffer.speech_stopped")
        assert (await client.until("response.done"))["response"]["status"] == "completed"
