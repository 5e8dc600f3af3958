"""Recordings as browsers, phones and programs write them, on every endpoint that takes audio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import numpy as np
import pytest
import pytest_asyncio
from fake_stages import INPUT_RATE_HZ, THINKER, FakeStages
from gateway_door import MODEL, Door, open_door
from media_files import MUXED, muxed, needs_ffmpeg
from test_audio_input import ask, heard

from antiphon.options import Option, OptionKind
from antiphon.v1 import speech_pb2, speech_pb2_grpc
from antiphon.wire.options import option_to_proto, option_values_from_proto

pytestmark = [pytest.mark.asyncio(loop_scope="session"), needs_ffmpeg()]

SAMPLE = Option("sample", OptionKind.AUDIO, sample_rate_hz=INPUT_RATE_HZ, max_s=90.0)


def _long(fakes: FakeStages) -> None:
    fakes[THINKER].description.max_input_audio_s = 90.0
    fakes[THINKER].description.options.append(option_to_proto(SAMPLE))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def long_door() -> AsyncIterator[Door]:
    """A gateway whose thinker takes 90 s of audio, and a recording as an option."""
    async with open_door(_long, max_body_bytes=32 << 20, max_fetch_bytes=32 << 20) as door:
        yield door


async def _chat(door: Door, file: bytes, name: str) -> np.ndarray:
    response = await ask(door, file, name=name)
    assert response.status_code == 200, response.text
    return heard(door).recordings[0]


async def _data_url(door: Door, file: bytes, name: str) -> np.ndarray:
    response = await ask(door, file, url=f"audio/{name}")
    assert response.status_code == 200, response.text
    return heard(door).recordings[0]


async def _transcription(door: Door, file: bytes, name: str) -> np.ndarray:
    files = {"file": (f"said.{name}", file)}
    path = "/v1/audio/transcriptions"
    response = await door.http.post(path, data={"model": MODEL}, files=files)
    assert response.status_code == 200, response.text
    return heard(door).recordings[0]


async def _option(door: Door, file: bytes, name: str) -> np.ndarray:
    import base64

    option = {"data": base64.b64encode(file).decode(), "format": name}
    response = await door.chat(options={"sample": option})
    assert response.status_code == 200, response.text
    return _sample(door)


def _sample(door: Door) -> np.ndarray:
    found = option_values_from_proto(door.fakes[THINKER].sessions[-1].segment.options)["sample"]
    assert isinstance(found, np.ndarray)
    return found


async def _generate(door: Door, request: speech_pb2.GenerateRequest) -> None:
    most = [("grpc.max_send_message_length", 64 << 20)]
    async with grpc.aio.insecure_channel(door.gateway.grpc_address, most) as channel:
        async for _ in speech_pb2_grpc.SpeechServiceStub(channel).Generate(request):
            pass


async def _grpc(door: Door, file: bytes, name: str) -> np.ndarray:
    part = speech_pb2.Part(audio=speech_pb2.AudioPart(wav=file))
    message = speech_pb2.Message(role="user", parts=[part])
    await _generate(door, speech_pb2.GenerateRequest(messages=[message]))
    return heard(door).recordings[0]


async def _grpc_option(door: Door, file: bytes, name: str) -> np.ndarray:
    message = speech_pb2.Message(role="user", parts=[speech_pb2.Part(text="Hi")])
    option = speech_pb2.OptionInput(audio=speech_pb2.AudioPart(wav=file))
    request = speech_pb2.GenerateRequest(messages=[message])
    request.options["sample"].CopyFrom(option)
    await _generate(door, request)
    return _sample(door)


ENDPOINTS: dict[str, Callable[[Door, bytes, str], Awaitable[np.ndarray]]] = {
    "chat": _chat,
    "url": _data_url,
    "transcription": _transcription,
    "option": _option,
    "grpc": _grpc,
    "grpc-option": _grpc_option,
}
NAMES = {"mka-vorbis": "mka", "3gp": "3gp", "adts": "aac", "aiff": "aiff", "caf": "caf"}
MEDIA = {"mka": "x-matroska", "m4a": "x-m4a", "3gp": "3gpp", "caf": "x-caf"}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("seconds", [1.0, 60.0])
@pytest.mark.parametrize("kind", MUXED)
async def test_a_container_is_read(
    long_door: Door, kind: str, seconds: float, endpoint: str
) -> None:
    name = NAMES.get(kind, kind.split("-")[0])
    if endpoint == "url":
        name = MEDIA.get(name, name)
    got = await ENDPOINTS[endpoint](long_door, muxed(kind, seconds), name)
    # Encoders pad what they code, by at most two of their frames.
    assert abs(len(got) - seconds * INPUT_RATE_HZ) <= 0.1 * INPUT_RATE_HZ
    middle = got[len(got) // 4 : len(got) // 2]
    assert abs(np.std(middle) - 0.4 / np.sqrt(2)) < 0.02
