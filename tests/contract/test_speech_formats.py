"""The formats and speeds of spoken answers, as the client's decoder has them."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import numpy.typing as npt
import openai
import pytest
import pytest_asyncio
import soundfile

from antiphon.values.chunk import Tensor
from antiphon.values.segment import FinishReason
from antiphon_gateway.media import pyav
from antiphon_gateway.media.encoding import EncodingSteps
from tests.contract.fake_stages import Session
from tests.contract.reading_model import VOCODER, Reader, open_reader, post
from tests.contract.served_gateway import MODEL, SPOKEN, ServedGateway, tell_anew

pytestmark = pytest.mark.asyncio(loop_scope="session")

Samples = npt.NDArray[np.float32]

RATE_HZ = 24_000
SECONDS = 2
MEDIA_TYPES = {
    "wav": "audio/wav", "pcm": "audio/pcm", "mp3": "audio/mpeg", "opus": "audio/ogg",
    "flac": "audio/flac", "aac": "audio/aac",
}  # fmt: skip
PACKED = ("mp3", "opus", "flac", "aac")
# A second of audio, as it is made here, and less than half of it that a format may keep back.
PIECE = RATE_HZ
LEAST_HEARD = PIECE // 2
FLAC_BLOCK = 1152
"""Samples behind each of its marks."""
# What a lossy format may leave of a tone; measured: 0.998 and more.
ALIKE = 0.98
LATE = {"mp3": 1600, "opus": 0, "aac": 2047}
"""Most samples more than were said, at 24 kHz."""


def chirp(seconds: float, rate_hz: int) -> Samples:
    """A tone that rises from 200 Hz by 400 Hz a second, so that nothing in it repeats."""
    time_s = np.arange(round(seconds * rate_hz)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * (200 * time_s + 200 * time_s**2))).astype(np.float32)


def needs_pyav(name: str) -> None:
    if name == "aac" and not pyav.there_is_pyav():
        pytest.skip("PyAV is not installed")


def decoded(data: bytes, name: str) -> tuple[Samples, int]:
    """The samples of an answer, and their rate."""
    if name == "pcm":
        return np.frombuffer(data, "<i2").astype(np.float32) / 32768, 0
    if name == "aac":
        import av

        with av.open(io.BytesIO(data)) as file:
            pieces = [frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)]
            return np.concatenate(pieces), file.streams.audio[0].rate
    if name == "streamed_flac":
        # It does not say how many samples it has, and libsndfile wants to know. Others do not.
        blank = bytearray(data)
        blank[21:26] = (int.from_bytes(data[21:26], "big") | SECONDS * RATE_HZ).to_bytes(5, "big")
        data = bytes(blank)
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        return file.read(dtype="float32"), file.samplerate


def likeness(heard: Samples, said: Samples) -> float:
    """How alike they are where they are most alike, 1 at most; a codec may begin late."""
    size = len(heard) + len(said)
    product = np.fft.rfft(heard, size) * np.conj(np.fft.rfft(said, size))
    return float(
        np.fft.irfft(product, size).max() / np.sqrt(np.square(said).sum() * np.square(heard).sum())
    )


def speaking(samples: Samples, rate_hz: int = RATE_HZ, go_on: asyncio.Event | None = None) -> Any:
    """A vocoder's script: pieces of a second, the second of them after `go_on`."""

    async def speak(session: Session) -> None:
        await session.opened()
        for start in range(0, len(samples), rate_hz):
            if start and go_on is not None:
                await go_on.wait()
            piece = samples[start : start + rate_hz]
            await session.chunk("audio", {"samples": piece}, position=start)
        await session.chunk("audio", position=len(samples), finish=FinishReason.STOP)
        await session.report()

    return speak


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def speaker() -> AsyncIterator[tuple[Reader, openai.AsyncOpenAI]]:
    """A model that reads aloud at 24 kHz."""
    async with open_reader(encoder_threads=1) as reader:
        reader[1].fleet[VOCODER].require().sample_rate_hz = RATE_HZ
        tell_anew(reader[1])
        url = f"http://{reader[1].http_address}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as api:
            yield reader, api


Speaker = tuple[Reader, openai.AsyncOpenAI]


@pytest.mark.parametrize("name", MEDIA_TYPES)
async def test_speech_is_what_was_said_in_every_format(speaker: Speaker, name: Any) -> None:
    needs_pyav(name)
    (fakes, _), api = speaker
    said = chirp(SECONDS, RATE_HZ)
    fakes[VOCODER].script = speaking(said)
    answer = await api.audio.speech.create(
        model="reader", input="Read this.", voice="alto", response_format=name
    )
    assert answer.response.headers["content-type"] == MEDIA_TYPES[name]
    heard, rate_hz = decoded(answer.read(), name)
    assert rate_hz in (0, RATE_HZ)
    if name in ("wav", "pcm", "flac"):
        np.testing.assert_array_equal(np.rint(heard * 32768), np.rint(said * 32767))
    else:
        # Their coders begin a little late.
        assert len(said) <= len(heard) <= len(said) + LATE[name]
        assert likeness(heard, said) > ALIKE


async def test_speech_is_mp3_when_nothing_is_said_of_it(speaker: Speaker) -> None:
    response = await post(speaker[0], input="Read.")
    assert response.headers["content-type"] == "audio/mpeg"


@pytest.mark.parametrize("name", MEDIA_TYPES)
async def test_speech_leaves_as_it_is_made_in_every_format(speaker: Speaker, name: Any) -> None:
    needs_pyav(name)
    (fakes, _), api = speaker
    said = chirp(SECONDS, RATE_HZ)
    go_on = asyncio.Event()
    fakes[VOCODER].script = speaking(said, go_on=go_on)
    first = b""
    async with api.audio.speech.with_streaming_response.create(
        model="reader",
        input="Read this.",
        voice="alto",
        response_format=name,
        extra_body={"delivery": "stream"} if name == "flac" else None,
    ) as answer:
        pieces = answer.iter_bytes()
        # Until the first second can be heard the second one is not made.
        while heard_samples(first, name) < LEAST_HEARD:
            first += await anext(pieces)
        go_on.set()
        whole = first + b"".join([each async for each in pieces])
    streamed = "streamed_flac" if name == "flac" else name
    assert likeness(decoded(whole, streamed)[0], said) > ALIKE


def heard_samples(data: bytes, name: str) -> int:
    """How many samples the beginning of an answer has."""
    if name in ("wav", "pcm"):
        return len(data) // 2
    if name == "flac":
        return data.count(b"\xff\xf8") * FLAC_BLOCK
    try:
        return len(decoded(data, name)[0]) if len(data) > 100 else 0
    except (soundfile.LibsndfileError, ValueError, OSError):
        return 0


@pytest.mark.parametrize("name", ["mp3", "opus", "flac"])
async def test_speech_comes_in_every_format_as_events(speaker: Speaker, name: str) -> None:
    reader, _ = speaker
    said = chirp(SECONDS, RATE_HZ)
    reader[0][VOCODER].script = speaking(said)
    response = await post(reader, input="Read.", stream_format="sse", response_format=name)
    *deltas, done = (
        json.loads(each.removeprefix("data: ")) for each in response.text.strip().split("\n\n")
    )
    assert done["type"] == "speech.audio.done"
    data = base64.b64decode("".join(each["audio"] for each in deltas), validate=True)
    assert likeness(decoded(data, name)[0], said) > ALIKE


@pytest.mark.parametrize(
    ("name", "rate_hz", "comes_at_hz"),
    [
        ("mp3", 4_000, 8_000),
        ("mp3", 44_100, 44_100),
        ("mp3", 96_000, 48_000),
        ("opus", 22_050, 24_000),
        ("opus", 44_100, 48_000),
        ("flac", 44_100, 44_100),
    ],
)
async def test_speech_has_a_rate_that_its_format_has(
    speaker: Speaker, name: str, rate_hz: int, comes_at_hz: int
) -> None:
    reader, _ = speaker
    told = reader[1].fleet[VOCODER].require()
    told.sample_rate_hz = rate_hz
    tell_anew(reader[1])
    seconds = SECONDS * RATE_HZ / rate_hz if name == "flac" else 1.0
    reader[0][VOCODER].script = speaking(chirp(seconds, rate_hz), rate_hz)
    try:
        response = await post(reader, input="Read.", response_format=name)
    finally:
        told.sample_rate_hz = RATE_HZ
        tell_anew(reader[1])
    heard, found_hz = decoded(response.content, name)
    # Opus is always decoded at the rate that its header names.
    assert found_hz == comes_at_hz
    assert abs(len(heard) / found_hz - seconds) < 0.2
    assert likeness(heard, chirp(seconds, comes_at_hz)) > ALIKE


@pytest.mark.parametrize("name", ["mp3", "opus", "flac"])
async def test_speech_of_no_samples_is_an_empty_answer(speaker: Speaker, name: str) -> None:
    reader, _ = speaker
    reader[0][VOCODER].script = speaking(chirp(0, RATE_HZ))
    response = await post(reader, input="Read.", response_format=name)
    assert response.status_code == 200


async def test_speech_is_encoded_beside_the_event_loop(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, _ = speaker
    release, add = threading.Event(), EncodingSteps.add

    def blocked(steps: EncodingSteps, samples: Tensor) -> bytes:
        if threading.current_thread() is not threading.main_thread():
            assert release.wait(120)
        return add(steps, samples)

    monkeypatch.setattr(EncodingSteps, "add", blocked)
    try:
        reader[0][VOCODER].script = speaking(chirp(SECONDS, RATE_HZ))
        packed = [
            asyncio.create_task(post(reader, input="R.", response_format=f)) for f in PACKED[:3]
        ]
        plain = [await post(reader, input="R.", response_format="pcm") for _ in range(5)]
        # Those had their turns, and the others could not have theirs.
        assert not any(each.done() for each in packed)
    finally:
        release.set()
    assert [len(each.content) for each in plain] == [2 * SECONDS * RATE_HZ] * 5
    assert [each.status_code for each in await asyncio.gather(*packed)] == [200] * 3


@pytest.mark.parametrize("speed", [0.25, 0.75, 1.5, 4.0])
async def test_speech_at_another_speed_has_the_same_pitch(speaker: Speaker, speed: float) -> None:
    pytest.importorskip("av")
    reader, _ = speaker
    time_s = np.arange(SECONDS * RATE_HZ) / RATE_HZ
    tone = (0.5 * np.sin(2 * np.pi * 440 * time_s)).astype(np.float32)
    reader[0][VOCODER].script = speaking(tone)
    response = await post(reader, input="Read.", response_format="pcm", speed=speed)
    heard, _ = decoded(response.content, "pcm")
    # What is laid over each other at the end is some hundredths of a second.
    assert abs(len(heard) / RATE_HZ - SECONDS / speed) < 0.1
    spectrum = np.abs(np.fft.rfft(heard[2000 : 2000 + 8192]))
    assert abs(np.argmax(spectrum) * RATE_HZ / 8192 - 440) < 2 * RATE_HZ / 8192


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"speed": 1.5}, "speed"), ({"response_format": "aac"}, "response_format")],
)
async def test_speech_names_the_remedy_where_pyav_is_not_installed(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], param: str
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    pyav.there_is_pyav.cache_clear()
    try:
        response = await post(speaker[0], input="Read.", **fields)
    finally:
        monkeypatch.undo()
        pyav.there_is_pyav.cache_clear()
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, "not_implemented")
    assert "antiphon[av]" in error["message"]


@pytest.mark.parametrize("name", PACKED)
async def test_chat_answers_with_a_whole_file_in_every_format(
    served: ServedGateway, name: Any
) -> None:
    needs_pyav(name)
    answer = await served.openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        modalities=["text", "audio"],
        audio={"voice": "ethan", "format": name},
    )
    plain = await served.chat(**SPOKEN)
    said = np.frombuffer(
        base64.b64decode(plain.json()["choices"][0]["message"]["audio"]["data"]), "<i2"
    )
    audio = answer.choices[0].message.audio
    assert audio is not None
    data = base64.b64decode(audio.data)
    if name != "aac":
        # Its header says how long it is.
        info = soundfile.info(io.BytesIO(data))
        assert (info.frames, info.samplerate) == (len(said), RATE_HZ)
    heard, _ = decoded(data, name)
    if name == "flac":
        np.testing.assert_array_equal(np.rint(heard * 32768), said)
    assert likeness(heard, said.astype(np.float32)) > 0.9
