from __future__ import annotations

import base64
import io
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from antiphon.errors import InvalidArgument
from antiphon.values.conversation import AudioPart, Conversation, from_tensors
from antiphon_gateway.media.audio_formats import ForwardSink
from antiphon_gateway.media.encoding import AudioEncoding, EncodingSteps
from antiphon_gateway.media.mp3 import frame_at
from tests.contract.fake_stages import INPUT_RATE_HZ, MAX_INPUT_AUDIO_S, THINKER, Session
from tests.contract.served_gateway import ServedGateway, serve_gateway, tell_anew

pytestmark = pytest.mark.asyncio(loop_scope="session")

FIELD = "messages[0].content[1].input_audio.data"


def tone(rate_hz: int, seconds: float = 0.1) -> np.ndarray[Any, Any]:
    return 0.5 * np.sin(2 * np.pi * 440 * np.arange(round(rate_hz * seconds)) / rate_hz)


def wav(
    samples: np.ndarray[Any, Any], rate_hz: int, subtype: str = "PCM_16", format_: str = "WAV"
) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, subtype=subtype, format=format_)
    return file.getvalue()


async def ask(
    served: ServedGateway, *recordings: bytes | str, name: str = "wav", url: str = ""
) -> httpx.Response:
    """Ask about recordings of that format, or with data URLs of that media type."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": "What is this?"}]
    for recording in recordings:
        data = recording if isinstance(recording, str) else base64.b64encode(recording).decode()
        if url:
            parts.append({"type": "audio_url", "audio_url": {"url": f"data:{url};base64,{data}"}})
        else:
            parts.append({"type": "input_audio", "input_audio": {"data": data, "format": name}})
    return await served.chat(messages=[{"role": "user", "content": parts}])


def heard(served: ServedGateway) -> Conversation:
    """The conversation that came to the thinker."""
    chunk = served.fakes[THINKER].sessions[-1].input
    assert chunk is not None
    return from_tensors(chunk.tensors)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 44_100, 48_000])
async def test_audio_comes_at_the_thinkers_rate(served: ServedGateway, rate_hz: int) -> None:
    response = await ask(served, wav(tone(rate_hz), rate_hz))
    assert response.status_code == 200, response.text
    (recording,) = heard(served).recordings
    wanted = tone(INPUT_RATE_HZ)
    assert (recording.dtype, recording.shape) == (np.float32, wanted.shape)
    middle = slice(200, -200)
    assert np.abs(recording[middle] - wanted[middle]).max() < 2e-3


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
async def test_audio_is_read_at_any_width(served: ServedGateway, subtype: str) -> None:
    response = await ask(served, wav(tone(INPUT_RATE_HZ), INPUT_RATE_HZ, subtype))
    assert response.status_code == 200, response.text
    (recording,) = heard(served).recordings
    assert np.abs(recording - tone(INPUT_RATE_HZ)).max() < 0.01


@pytest.mark.parametrize("subtype", ["ALAW", "ULAW"])
async def test_audio_is_read_as_a_telephone_sends_it(served: ServedGateway, subtype: str) -> None:
    response = await ask(served, wav(tone(INPUT_RATE_HZ), INPUT_RATE_HZ, subtype))
    assert response.status_code == 200, response.text
    (recording,) = heard(served).recordings
    # The octave below 0.5 has sixteen steps, and an encoder may cut instead of rounding.
    assert np.abs(recording - tone(INPUT_RATE_HZ)).max() < 0.25 / 16 + 2**-12


FILES: dict[str, tuple[str, str, str, str]] = {
    # libsndfile's format and subtype, OpenAI's name, a media type.
    "mp3": ("MP3", "MPEG_LAYER_III", "mp3", "audio/mpeg"),
    "flac": ("FLAC", "PCM_24", "flac", "audio/flac"),
    "vorbis": ("OGG", "VORBIS", "ogg", "audio/ogg"),
    "opus": ("OGG", "OPUS", "opus", "audio/ogg"),
    "wav": ("WAV", "PCM_16", "wav", "audio/x-wav"),
}


@pytest.mark.parametrize("by_url", [False, True], ids=["data", "url"])
@pytest.mark.parametrize("kind", FILES)
async def test_audio_is_read_of_every_format(
    served: ServedGateway, kind: str, by_url: bool
) -> None:
    container, subtype, name, media_type = FILES[kind]
    rate_hz = 24_000
    said = tone(rate_hz, 1.0) * np.linspace(0, 1, rate_hz)
    file = wav(said, rate_hz, subtype, container)
    response = await ask(served, file, name=name, url=media_type if by_url else "")
    assert response.status_code == 200, response.text
    (recording,) = heard(served).recordings
    assert abs(len(recording) - INPUT_RATE_HZ) <= INPUT_RATE_HZ // 100
    # A lossy coder shifts it a little; its loudness stays where it was.
    for quarter in range(4):
        part = recording[quarter * 3_960 : (quarter + 1) * 3_960]
        wanted = said[quarter * 5_940 : (quarter + 1) * 5_940]
        assert abs(np.std(part) - np.std(wanted)) < 0.01


async def test_audio_of_a_flac_stream_of_unknown_length_is_read_to_its_end(
    served: ServedGateway,
) -> None:
    encoder = EncodingSteps(AudioEncoding("flac"), INPUT_RATE_HZ)
    said = tone(INPUT_RATE_HZ, 1.0).astype(np.float32)
    response = await ask(served, encoder.add(said) + encoder.finish(), name="flac")
    assert response.status_code == 200, response.text
    (recording,) = heard(served).recordings
    assert np.abs(recording - said).max() < 1e-3
    endless = EncodingSteps(AudioEncoding("flac"), INPUT_RATE_HZ)
    long = np.zeros(round((MAX_INPUT_AUDIO_S + 0.1) * INPUT_RATE_HZ), np.float32)
    response = await ask(served, endless.add(long) + endless.finish(), name="flac")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == FIELD


async def test_audio_of_an_mp3_stream_is_read_to_its_end_or_refused(served: ServedGateway) -> None:
    """Of a variable rate, libsndfile takes the first frame's for that of all, and stops there."""
    said = tone(INPUT_RATE_HZ, 1.5).astype(np.float32)
    steady = EncodingSteps(AudioEncoding("mp3"), INPUT_RATE_HZ)
    response = await ask(served, steady.add(said) + steady.finish(), name="mp3")
    assert response.status_code == 200, response.text
    (recording,) = heard(served).recordings
    assert 0 <= len(recording) - len(said) < 2048
    sink = ForwardSink()
    with soundfile.SoundFile(
        sink, "w", INPUT_RATE_HZ, 1, "MPEG_LAYER_III", format="MP3", bitrate_mode="VARIABLE"
    ) as file:
        # Loud, then silent: the first frames have many more bits.
        file.write(np.random.default_rng(0).uniform(-1, 1, 4_000).astype(np.float32))
        file.write(np.zeros(20_000, np.float32))
    data = sink.take()
    response = await ask(served, data[frame_at(data, 0)[0] :], name="mp3")
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, FIELD)
    assert "variable bit rate" in error["message"]


@pytest.mark.parametrize("name", ["mp3", "ogg", "webm"])
async def test_audio_is_what_its_content_says_whatever_it_is_called(
    served: ServedGateway, name: str
) -> None:
    response = await ask(served, wav(tone(8_000), 8_000), name=name)
    assert response.status_code == 200, response.text
    assert len(heard(served).recordings[0]) == len(tone(INPUT_RATE_HZ))


async def test_audio_channels_are_averaged(served: ServedGateway) -> None:
    left = tone(INPUT_RATE_HZ)
    await ask(served, wav(np.stack([left, np.zeros_like(left)], axis=1), INPUT_RATE_HZ))
    (recording,) = heard(served).recordings
    assert np.abs(recording - left / 2).max() < 1e-3


async def test_audio_parts_refer_to_their_recordings_in_order(served: ServedGateway) -> None:
    short, long = tone(INPUT_RATE_HZ, 0.01), tone(INPUT_RATE_HZ, 0.02)
    await ask(served, wav(short, INPUT_RATE_HZ), wav(long, INPUT_RATE_HZ))
    conversation = heard(served)
    parts = conversation.messages[0].parts
    assert [part.index for part in parts if isinstance(part, AudioPart)] == [0, 1]
    assert [len(each) for each in conversation.recordings] == [len(short), len(long)]


BAD: dict[str, bytes | str] = {
    "not valid base64": "no base64!",
    "empty": b"",
    "doesn't accept audio": b"RIFFxxxxWAVE",
    "noise": bytes(range(256)),
    "not audio": b"%PDF-1.7" + bytes(100),
    "no samples": wav(np.zeros(0), 8_000),
    **{
        subtype: wav(tone(8_000), 8_000, subtype)
        for subtype in ("GSM610", "G721_32", "IMA_ADPCM", "MS_ADPCM", "NMS_ADPCM_16")
    },
    "nan": wav(np.array([0.0, np.nan]), 8_000, "FLOAT"),
    "infinite": wav(np.array([0.0, np.inf]), 8_000, "DOUBLE"),
    "too loud": wav(np.full((2, 5), 3e38), 8_000, "FLOAT"),
    "rate too low": wav(np.zeros(9), 500),
    "too long": wav(np.zeros(round((MAX_INPUT_AUDIO_S + 0.1) * 8_000)), 8_000),
}


@pytest.mark.parametrize("name", BAD)
async def test_audio_is_refused_naming_the_field(served: ServedGateway, name: str) -> None:
    response = await ask(served, BAD[name])
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (FIELD, "invalid_argument")
    assert FIELD in error["message"]
    assert not served.fakes[THINKER].sessions


async def test_audio_is_refused_when_all_recordings_together_are_too_long(
    served: ServedGateway,
) -> None:
    half = wav(np.zeros(round(MAX_INPUT_AUDIO_S * 0.6 * 8_000)), 8_000)
    response = await ask(served, half, half)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == FIELD.replace("content[1]", "content[2]")


async def test_audio_is_refused_when_there_are_very_many_recordings(served: ServedGateway) -> None:
    short = base64.b64encode(wav(np.zeros(1), 8_000)).decode()
    response = await ask(served, *[short] * 5000)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "invalid_argument"
    assert error["param"].startswith("messages[0]")


@pytest.mark.parametrize(
    ("settings", "seconds", "place"),
    [
        ({"max_recordings": 2}, 0.1, 3),
        ({"max_recording_s": 0.5}, 0.6, 1),
        ({"max_audio_s": 1.0}, 0.4, 3),
    ],
)
async def test_audio_is_refused_beyond_a_limit_of_the_gateway(
    settings: dict[str, Any], seconds: float, place: int
) -> None:
    async with serve_gateway(**settings) as served:
        response = await ask(served, *[wav(tone(8_000, seconds), 8_000)] * 3)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == FIELD.replace("content[1]", f"content[{place}]")
        assert not served.fakes[THINKER].sessions


async def test_what_a_stage_says_of_a_recording_names_its_path(served: ServedGateway) -> None:
    async def refuse(session: Session) -> None:
        await session.opened()
        await session.error(InvalidArgument("audio.1: too short: 9 samples", field="audio.1"))

    served.fakes[THINKER].script = refuse
    short = wav(tone(INPUT_RATE_HZ), INPUT_RATE_HZ)
    response = await ask(served, short, short)
    assert response.status_code == 400
    path = FIELD.replace("content[1]", "content[2]")
    error = response.json()["error"]
    assert (error["param"], error["message"]) == (path, f"{path}: too short: 9 samples")


async def test_audio_is_not_implemented_when_the_thinker_hears_nothing(
    served: ServedGateway,
) -> None:
    served.gateway.fleet[THINKER].require().input_sample_rate_hz = 0
    tell_anew(served.gateway)
    try:
        response = await ask(served, wav(tone(8_000), 8_000))
    finally:
        served.gateway.fleet[THINKER].require().input_sample_rate_hz = INPUT_RATE_HZ
        tell_anew(served.gateway)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "not_implemented")
