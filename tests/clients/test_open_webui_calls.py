"""The calls of Open WebUI 0.12.4 with the settings of `examples/open-webui.yaml`.

Open WebUI itself is too large to install here. These are its requests, field by field.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import soundfile
import soxr
from websockets.sync.client import ClientConnection, connect

from antiphon_tools.demo.script import SPOKEN
from tests.embedded_model import ROOT

EXAMPLE = ROOT / "examples" / "open-webui.yaml"
QUESTION, ANSWER = "What is antiphon?", "Antiphon serves speech models as small services."
HEARD = "What are the stages?"
RATE_HZ = 24_000
# What Open WebUI takes in one message.
MOST_BYTES = 512 * 1024
WAIT_S = 200

Json = dict[str, Any]

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    """The environment of the container, without variables of the user's."""
    described = msgspec.yaml.decode(EXAMPLE.read_bytes())
    environment = described["services"]["open-webui"]["environment"]
    return {
        name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for name, value in environment.items()
    }


@contextmanager
def api(url: str, settings: dict[str, str]) -> Iterator[httpx.Client]:
    """Calls of the base URL in the settings, which is where the gateway is."""
    assert settings["OPENAI_API_BASE_URL"] == "http://localhost:8000/v1"
    headers = {
        "Authorization": f"Bearer {settings['OPENAI_API_KEY']}",
        "HTTP-Referer": "https://openwebui.com/",
        "X-Title": "Open WebUI",
        "X-OpenWebUI-User-Name": "Ada",
    }
    with httpx.Client(base_url=f"{url}/v1", headers=headers, timeout=WAIT_S) as client:
        yield client


def test_chat_is_streamed_and_titled(served: str, settings: dict[str, str]) -> None:
    with api(served, settings) as client:
        model = client.get("/models").raise_for_status().json()["data"][0]["id"]
        messages: list[Json] = [{"role": "user", "content": QUESTION}]
        body: Json = {"stream": True, "model": model, "messages": messages}
        body["stream_options"] = {"include_usage": True}
        events: list[Json] = []
        with client.stream("POST", "/chat/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [each for each in answer.iter_lines() if each]
        assert lines[-1] == "data: [DONE]"
        events = [json.loads(each.removeprefix("data: ")) for each in lines[:-1]]
        deltas = [choice["delta"] for each in events for choice in each["choices"]]
        assert "".join(each.get("content") or "" for each in deltas) == ANSWER
        assert events[-1]["usage"]["completion_tokens"] > 0
        # A title is made of the turns so far, without a stream.
        titled = {"model": model, "messages": messages, "stream": False, "max_tokens": 1000}
        made = client.post("/chat/completions", json=titled).raise_for_status().json()
        assert made["choices"][0]["message"]["content"] == ANSWER


def test_models_and_voices_for_speech_are_listed(reading_aloud: str) -> None:
    """Both are asked for without a key."""
    # Unless there are models of audio, all models are offered.
    assert httpx.get(f"{reading_aloud}/v1/audio/models").status_code == 404
    models = httpx.get(f"{reading_aloud}/v1/models").json()["data"]
    assert all(model["id"] for model in models)
    assert models
    listed = httpx.get(f"{reading_aloud}/v1/audio/voices").raise_for_status().json()
    voices = {each["id"]: each["name"] for each in listed["voices"]}
    assert voices


def test_message_is_read_aloud(reading_aloud: str, settings: dict[str, str]) -> None:
    body = {
        "input": "Read this.",
        "voice": settings["AUDIO_TTS_VOICE"],
        "model": settings["AUDIO_TTS_MODEL"],
    }
    with api(reading_aloud, settings) as client:
        spoken = client.post("/audio/speech", json=body).raise_for_status()
    assert spoken.headers["content-type"] == "audio/mpeg"
    # A frame of MPEG audio, or a tag before it.
    assert spoken.content.startswith((b"\xff", b"ID3"))


@pytest.mark.parametrize("language", ["en", None])
def test_recording_is_transcribed(
    served: str, settings: dict[str, str], language: str | None
) -> None:
    """The file comes in chunks of a length that is not announced."""
    boundary = "8b1f0e6c8f2b4d0d"
    fields = {"model": settings["AUDIO_STT_MODEL"]} | ({"language": language} if language else {})
    parts = [
        f"--{boundary}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    head = (
        f"--{boundary}\r\nContent-Type: application/octet-stream\r\n"
        'Content-Disposition: form-data; name="file"; filename="4f0e.wav"\r\n\r\n'
    )

    def body() -> Iterator[bytes]:
        yield "".join(parts).encode()
        yield head.encode()
        yield Path(SPOKEN).read_bytes()
        yield f"\r\n--{boundary}--\r\n".encode()

    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    with api(served, settings) as client:
        heard = client.post("/audio/transcriptions", content=body(), headers=headers)
    assert heard.raise_for_status().json()["text"] == HEARD


class VoiceCall:
    """A connection on which no error may come, as one ends a call."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    def send(self, event: Json) -> None:
        self._socket.send(json.dumps(event))

    def next(self) -> Json:
        event = json.loads(self._socket.recv(WAIT_S))
        assert event["type"] != "error", event
        return event

    def until(self, kind: str) -> tuple[Json, list[Json]]:
        """The first event of a type, and those before it."""
        before: list[Json] = []
        while (event := self.next())["type"] != kind:
            before.append(event)
        return event, before


@contextmanager
def voice_call(url: str, key: str) -> Iterator[VoiceCall]:
    """A session of a model by an alias."""
    address = f"{url.replace('http', 'ws', 1)}/v1/realtime?model=gpt-realtime"
    headers = {"Authorization": f"Bearer {key}"}
    with connect(address, additional_headers=headers, max_size=MOST_BYTES) as socket:
        call = VoiceCall(socket)
        assert call.next()["type"] == "session.created"
        yield call


def audio_of(events: list[Json]) -> bytes:
    """The audio of an answer, in whole samples."""
    deltas = [each for each in events if each["type"] == "response.output_audio.delta"]
    pcm16 = b"".join(base64.b64decode(each["delta"], validate=True) for each in deltas)
    assert len(pcm16) % 2 == 0
    return pcm16


def test_message_is_spoken_by_a_realtime_model(served: str, settings: dict[str, str]) -> None:
    assert settings["AUDIO_TTS_ENGINE"] == "openai-realtime"
    instructions = "Read the text aloud."
    with voice_call(served, settings["AUDIO_TTS_OPENAI_API_KEY"]) as call:
        session: Json = {
            "type": "realtime",
            "output_modalities": ["audio"],
            "audio": {
                "input": {"turn_detection": None, "transcription": None},
                "output": {
                    "format": {"type": "audio/pcm", "rate": RATE_HZ},
                    "voice": settings["AUDIO_TTS_VOICE"],
                },
            },
            "tools": [],
            "tool_choice": "none",
            "instructions": instructions,
        }
        call.send({"type": "session.update", "session": session})
        assert call.next()["type"] == "session.updated"
        text = {"type": "input_text", "text": QUESTION}
        response: Json = {
            "conversation": "none",
            "output_modalities": ["audio"],
            "tools": [],
            "tool_choice": "none",
            "instructions": instructions,
            "input": [{"type": "message", "role": "user", "content": [text]}],
        }
        call.send({"type": "response.create", "response": response})
        done, before = call.until("response.done")
    assert done["response"]["status"] == "completed"
    assert len(audio_of(before)) > RATE_HZ


def context(revision: int) -> Json:
    """The turns of the chat, as a message of the system."""
    text = "Current chat:\n" + json.dumps([{"role": "user", "content": "Hello."}])
    content = [{"type": "input_text", "text": text}]
    item = {"id": f"chat_context_{revision}", "type": "message", "role": "system"}
    return {"type": "conversation.item.create", "item": item | {"content": content}}


def test_voice_call_is_held(served: str, settings: dict[str, str]) -> None:
    with voice_call(served, settings["AUDIO_REALTIME_OPENAI_API_KEY"]) as call:
        parameters = {
            "type": "object",
            "properties": {"request": {"type": "string"}},
            "required": ["request"],
            "additionalProperties": False,
        }
        tool = {
            "type": "function",
            "name": "generate_chat_completion",
            "description": "Answer with the model of the chat.",
            "parameters": parameters,
        }
        pcm = {"type": "audio/pcm", "rate": RATE_HZ}
        detection = {"type": "server_vad", "interrupt_response": False, "create_response": False}
        hearing = {
            "format": pcm,
            "transcription": {"model": settings["AUDIO_REALTIME_TRANSCRIPTION_MODEL"]},
            "turn_detection": detection,
        }
        session: Json = {
            "type": "realtime",
            "output_modalities": ["audio"],
            "instructions": "You are the voice of a chat.",
            "audio": {
                "input": hearing,
                "output": {"format": pcm, "voice": settings["AUDIO_REALTIME_VOICE"]},
            },
            "tools": [tool],
            "tool_choice": "auto",
        }
        call.send({"type": "session.update", "session": session})
        assert call.next()["type"] == "session.updated"
        call.send(context(1))
        samples, rate_hz = soundfile.read(SPOKEN, dtype="float32")
        speech = soxr.resample(samples, rate_hz, RATE_HZ).clip(-1, 1) * 32767
        pcm16 = speech.astype(np.int16).tobytes() + bytes(2 * RATE_HZ)
        for start in range(0, len(pcm16), 4800):
            audio = base64.b64encode(pcm16[start : start + 4800]).decode()
            call.send({"type": "input_audio_buffer.append", "audio": audio})
        completed = "conversation.item.input_audio_transcription.completed"
        heard, _ = call.until(completed)
        assert heard["transcript"] == HEARD
        asked = {"metadata": {"input_item_id": heard["item_id"]}}
        call.send({"type": "response.create", "response": asked})
        done, before = call.until("response.done")
        assert done["response"]["status"] == "completed"
        assert done["response"]["metadata"] == asked["metadata"]
        played = len(audio_of(before)) // 2
        (spoken,) = {each["item_id"] for each in before if each["type"].endswith("audio.delta")}
        heard_to = {"item_id": spoken, "content_index": 0, "audio_end_ms": played * 500 // RATE_HZ}
        call.send({"type": "conversation.item.truncate", **heard_to})
        call.until("conversation.item.truncated")
        # The chat has gone on: its snapshot is replaced.
        call.send({"type": "conversation.item.delete", "item_id": "chat_context_1"})
        call.send(context(2))
        call.until("conversation.item.deleted")
        status: Json = {
            "conversation": "none",
            "input": [],
            "tools": [],
            "tool_choice": "none",
            "instructions": "Say this briefly: I am working on your request.",
            "metadata": {"status": "working"},
        }
        call.send({"type": "response.create", "response": status})
        created, _ = call.until("response.created")
        assert created["response"]["metadata"] == status["metadata"]
        call.send({"type": "response.cancel", "response_id": created["response"]["id"]})
        done, _ = call.until("response.done")
        assert done["response"]["status"] in ("cancelled", "completed")
