"""Names of models and voices that programs have written into them."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from openai.types import AudioModel, ChatModel
from openai.types.audio import SpeechModel
from openai.types.realtime import AudioTranscription, RealtimeSessionCreateRequest

from tests.contract.fake_stages import TALKER, FakeStages
from tests.contract.reading_model import SPEAKER, Reader, open_reader, post
from tests.contract.realtime_client import realtime
from tests.contract.served_gateway import MESSAGES, MODEL, ServedGateway, serve_gateway
from tests.contract.test_transcriptions import file

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The fakes have these voices, and OpenAI's go round them in a fixed order.
VOICES = {"alloy": 0, "ash": 1, "ballad": 0, "coral": 1, "echo": 0, "Nova": 0, "ONYX": 1}
PLUGINS: dict[str, dict[str, Any]] = {
    "the AI SDK": {"model": "tts-1", "voice": "alloy"},
    "Open WebUI": {"model": "tts-1-hd", "voice": "nova"},
    "Pipecat, LiveKit": {"model": "gpt-4o-mini-tts", "voice": "ash"},
    "OpenAI's examples": {"model": "gpt-4o-mini-tts", "voice": {"id": "coral"}},
}


@pytest.mark.parametrize("sender", PLUGINS)
async def test_speech_is_spoken_under_the_names_of_a_plugin(reader: Reader, sender: str) -> None:
    fields = PLUGINS[sender]
    answer = await post(reader, input="Read.", **fields)
    assert answer.status_code == 200, answer.text
    voice = fields["voice"]["id"] if isinstance(fields["voice"], dict) else fields["voice"]
    own = ("alto", "bass")[{"alloy": 0, "nova": 0, "ash": 1, "coral": 1}[voice]]
    assert reader[0][SPEAKER].sessions[-1].segment.voice == own


HEARING = {
    "the AI SDK": "whisper-1",
    "Pipecat, openai-agents": "gpt-transcribe",
    "LiveKit": "gpt-4o-mini-transcribe",
    "a snapshot": "gpt-4o-mini-transcribe-2025-12-15",
}
CHATTING = {
    "Pipecat, LiveKit": "gpt-4.1",
    "openai-agents": "gpt-4o",
    "Home Assistant": "gpt-4o-mini",
    "a snapshot": "gpt-4.1-2025-04-14",
}


@pytest.mark.parametrize("model", HEARING.values(), ids=HEARING)
async def test_a_recording_is_transcribed_under_the_names_of_a_plugin(
    served: ServedGateway, model: str
) -> None:
    said = await served.http.post(
        "/v1/audio/transcriptions", data={"model": model}, files={"file": file()}
    )
    assert (said.status_code, said.json()["text"]) == (200, "Hello wörld!")


@pytest.mark.parametrize("model", CHATTING.values(), ids=CHATTING)
async def test_a_chat_is_answered_under_the_names_of_a_plugin(
    served: ServedGateway, model: str
) -> None:
    answer = await served.chat(model=model, stream_options={"include_usage": True}, stream=True)
    assert answer.status_code == 200, answer.text
    assert f'"model":"{MODEL}"' in answer.text


def _openais(*types: Any) -> set[str]:
    """The names in types of OpenAI's library."""
    return {
        name
        for each in types
        for name in ([each] if isinstance(each, str) else _openais(*get_args(each)))
    }


async def test_every_model_of_openais_that_hears_or_speaks_is_a_name(served: ServedGateway) -> None:
    session = RealtimeSessionCreateRequest.model_fields["model"].annotation
    hearing = AudioTranscription.model_fields["model"].annotation
    chatting = {each for each in _openais(ChatModel) if "audio" in each}
    names = _openais(AudioModel, SpeechModel, session, hearing) | chatting
    # A type that the library has moved would leave nothing to check.
    assert {"gpt-transcribe", "tts-1", "gpt-realtime", "gpt-live-transcribe"} <= names
    for name in names:
        found = await served.http.get(f"/v1/models/{name}")
        assert found.status_code == 200, found.text


async def test_a_date_is_no_snapshot_of_a_models_own_name() -> None:
    async with serve_gateway(model_aliases=("speech",)) as served:
        for name in (f"{MODEL}-2025-12-15", "speech-2025-12-15", "tts-1-2025", "-2025-12-15"):
            answer = await served.chat(model=name)
            assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")


@pytest.mark.parametrize("voice", VOICES)
async def test_a_chat_speaks_under_openais_names(served: ServedGateway, voice: str) -> None:
    answer = await served.chat(
        model="gpt-4o-audio-preview",
        modalities=["text", "audio"],
        audio={"voice": voice, "format": "wav"},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == MODEL
    own = served.fakes[TALKER].description.voices
    assert served.fakes[TALKER].sessions[-1].segment.voice == own[VOICES[voice] % len(own)]


async def test_a_conversation_has_the_voice_that_the_name_stands_for(served: ServedGateway) -> None:
    own = served.fakes[TALKER].description.voices
    async with realtime(served, model="gpt-realtime") as client:
        for voice in ("ash", "MARIN", "nobody"):
            await client.send("session.update", session={"audio": {"output": {"voice": voice}}})
            updated = await client.until("session.updated")
            index = {"ash": 1, "MARIN": 12, "nobody": 12}[voice]
            assert updated["session"]["audio"]["output"]["voice"] == own[index % len(own)]
            assert updated["session"]["model"] == MODEL


async def test_aliases_are_listed_and_found(served: ServedGateway) -> None:
    listed = (await served.http.get("/v1/models")).json()["data"]
    assert listed[0]["id"] == MODEL
    ids = [each["id"] for each in listed]
    assert len(ids) == len(set(ids))
    assert {"tts-1", "whisper-1", "gpt-realtime"} <= set(ids)
    assert {each["root"] for each in listed} == {MODEL}
    own = listed[0]["voices"]
    assert listed[0]["voice_aliases"]["alloy"] == own[0]
    found = (await served.http.get("/v1/models/whisper-1")).json()
    assert (found["id"], found["root"]) == ("whisper-1", MODEL)
    assert (await served.http.get("/v1/audio/voices?model=tts-1")).status_code == 200
    assert (await served.http.get("/v1/models/whisper-9")).status_code == 404


async def test_a_deployment_has_names_of_its_own() -> None:
    names = {"house": "BASS", "Alloy": "bass", "tenor": "gone", "alto": "bass"}
    async with open_reader(model_aliases=("speech",), voice_aliases=names) as reader:
        for voice, own in (("House", "bass"), ("alloy", "bass"), ("alto", "alto")):
            answer = await post(reader, model="speech", input="Read.", voice=voice)
            assert answer.status_code == 200, answer.text
            assert reader[0][SPEAKER].sessions[-1].segment.voice == own
        refused = await post(reader, input="Read.", voice="tenor")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "voice")


async def test_openais_names_can_be_left_out() -> None:
    async with open_reader(openai_names=False) as reader:
        unknown = await post(reader, model="tts-1", input="Read.")
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model")
        voice = await post(reader, input="Read.", voice="alloy")
        assert (voice.status_code, voice.json()["error"]["param"]) == (400, "voice")
    async with serve_gateway(openai_names=False) as served:
        listed = (await served.http.get("/v1/models")).json()["data"]
        assert [each["id"] for each in listed] == [MODEL]
        for model in ("gpt-audio", "gpt-4o-mini-tts-2025-12-15"):
            assert (await served.chat(model=model, messages=MESSAGES)).status_code == 404


async def test_openais_voices_are_none_where_a_model_has_none() -> None:
    def without_voices(stages: FakeStages) -> None:
        del stages[SPEAKER].description.voices[:]

    async with open_reader(without_voices) as reader:
        answer = await post(reader, input="Read.", voice="alloy")
        assert answer.status_code == 200, answer.text
        assert reader[0][SPEAKER].sessions[-1].segment.voice == ""
        assert (await post(reader, input="Read.", voice="nobody")).status_code == 400
