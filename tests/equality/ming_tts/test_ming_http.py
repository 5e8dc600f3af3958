"""Ming TTS at the HTTP endpoints: OpenAI's speech, and chat, at 44.1 kHz in every format."""

from __future__ import annotations

import base64
import io
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile

from antiphon.pipelines.ming_tts import DECODER_OPTIONS, FRAME_SAMPLES, OPTIONS, SAMPLE_RATE_HZ
from antiphon_tools.launcher.launcher import Running
from tests.equality.ming_tts.ming_asking import CLIP_FILE, TOLERANCE, Recorded
from tests.equality.ming_tts.ming_cases import (
    AUDIO_STEP,
    CLIP,
    DESCRIPTION,
    NAMED,
    REFERENCE_TEXT,
    STYLE,
    VOICE_NAME,
    Case,
    all_cases,
)
from tests.equality.read_aloud import wav
from tests.equality.read_aloud_http import (
    Pcm16,
    check_refused_with_400,
    heard,
    heard_chat,
    heard_events,
)

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

CASES = {case.name: case for case in all_cases()}
SPOKEN = [CASES[f"{mode}-chinese"] for mode in ("plain", CLIP, "voice", DESCRIPTION, NAMED)]
SERVED = "windowed"
MODEL = "tiny"
"""The name of the checkpoint's folder."""
CLIP_DATA = base64.b64encode(CLIP_FILE).decode()


def body_of(case: Case, recorded: Recorded) -> dict[str, Any]:
    """A request to read a case aloud, in the fields that other servers have."""
    body: dict[str, Any] = {
        "model": MODEL,
        "input": case.text,
        "seed": recorded.seed(case),
        "max_tokens": case.most_steps,
        "response_format": "pcm",
    }
    match case.mode:
        case "named":
            body["voice"] = VOICE_NAME
        case "clip":
            body |= {"ref_audio": f"data:audio/wav;base64,{CLIP_DATA}", "ref_text": REFERENCE_TEXT}
        case "voice":
            body["ref_audio"] = f"data:audio/wav;base64,{CLIP_DATA}"
        case "description":
            body["instructions"] = STYLE
    return body


def check_pcm16(samples: Pcm16, case: Case, recorded: Recorded) -> None:
    """The recorded samples, as 16-bit ones: 1e-4 of full scale is three of their steps."""
    assert len(samples) == FRAME_SAMPLES * recorded.steps(case)
    expected = np.rint(recorded.of(case)["audio"].astype(np.float32) * 32767)
    assert np.abs(samples[::AUDIO_STEP] - expected).max() <= 1 + 32767 * TOLERANCE


@pytest.mark.parametrize("case", SPOKEN, ids=lambda case: case.name)
async def test_speech_is_the_recorded_one_in_every_mode(
    case: Case, speaking: dict[str, Running], recorded: Recorded
) -> None:
    pcm = await heard(speaking[SERVED], body_of(case, recorded))
    check_pcm16(np.frombuffer(pcm.content, "<i2"), case, recorded)


async def test_speech_comes_as_events(speaking: dict[str, Running], recorded: Recorded) -> None:
    case = SPOKEN[0]
    streamed, done = await heard_events(speaking[SERVED], body_of(case, recorded))
    check_pcm16(streamed, case, recorded)
    assert done["usage"]["output_tokens"] == recorded.steps(case)


@pytest.mark.parametrize(
    ("name", "rate_hz"),
    [("wav", SAMPLE_RATE_HZ), ("flac", SAMPLE_RATE_HZ), ("mp3", SAMPLE_RATE_HZ), ("opus", 48_000)],
)
async def test_files_have_the_models_rate_or_the_next_that_the_format_has(
    name: str, rate_hz: int, speaking: dict[str, Running], recorded: Recorded
) -> None:
    """Opus knows no 44.1 kHz."""
    case = SPOKEN[0]
    file = await heard(speaking[SERVED], body_of(case, recorded) | {"response_format": name})
    samples, rate = soundfile.read(io.BytesIO(file.content), dtype="float32")
    assert rate == rate_hz
    seconds = FRAME_SAMPLES * recorded.steps(case) / SAMPLE_RATE_HZ
    # Encoders of blocks begin with a delay and fill the last block up.
    assert 0 <= len(samples) / rate - seconds < 0.11
    if name in ("wav", "flac"):
        check_pcm16(np.rint(samples * 32768).astype("<i2"), case, recorded)


async def test_aac_has_the_models_rate(speaking: dict[str, Running], recorded: Recorded) -> None:
    av = pytest.importorskip("av")
    case = SPOKEN[0]
    file = await heard(speaking[SERVED], body_of(case, recorded) | {"response_format": "aac"})
    with av.open(io.BytesIO(file.content)) as container:
        frames = list(container.decode(audio=0))
    assert {frame.sample_rate for frame in frames} == {SAMPLE_RATE_HZ}
    seconds = sum(frame.samples for frame in frames) / SAMPLE_RATE_HZ
    assert 0 <= seconds - FRAME_SAMPLES * recorded.steps(case) / SAMPLE_RATE_HZ < 0.11


async def test_options_have_the_names_that_the_model_lists(
    speaking: dict[str, Running], recorded: Recorded
) -> None:
    running, case = speaking[SERVED], CASES["clip-chinese"]
    async with httpx.AsyncClient(base_url=running.http_url, timeout=240) as http:
        model = (await http.get("/v1/models")).json()["data"][0]
    assert VOICE_NAME in model["voices"]
    assert {each["name"] for each in model["options"]} == {
        each.name for each in (*OPTIONS, *DECODER_OPTIONS)
    }
    body = body_of(case, recorded)
    del body["ref_audio"], body["ref_text"]
    body["options"] = {
        "reference_audio": {"data": CLIP_DATA, "format": "wav"},
        "reference_text": REFERENCE_TEXT,
    }
    pcm = await heard(running, body)
    check_pcm16(np.frombuffer(pcm.content, "<i2"), case, recorded)


async def test_openais_client_describes_a_voice(
    speaking: dict[str, Running], recorded: Recorded
) -> None:
    case = CASES["description-english"]
    body = body_of(case, recorded)
    async with openai.AsyncOpenAI(
        base_url=f"{speaking[SERVED].http_url}/v1", api_key="none", max_retries=0
    ) as api:
        said = await api.audio.speech.create(
            model=body.pop("model"),
            input=body.pop("input"),
            voice="",
            instructions=body.pop("instructions"),
            response_format=body.pop("response_format"),
            extra_body=body,
        )
    check_pcm16(np.frombuffer(said.read(), "<i2"), case, recorded)


async def test_chat_reads_the_message_aloud(
    speaking: dict[str, Running], recorded: Recorded
) -> None:
    case, running = CASES["named-english"], speaking[SERVED]
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": case.text}],
        "modalities": ["audio"],
        "audio": {"voice": VOICE_NAME, "format": "pcm16"},
        "seed": recorded.seed(case),
    }
    for samples in await heard_chat(running, body):
        check_pcm16(samples, case, recorded)


async def test_chat_takes_a_recording_in_the_place_of_a_voice(
    speaking: dict[str, Running], recorded: Recorded
) -> None:
    case, running = CASES["clip-english"], speaking[SERVED]
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": case.text}],
        "modalities": ["audio"],
        "audio": {"format": "pcm16"},
        "options": {
            "reference_audio": {"data": CLIP_DATA, "format": "wav"},
            "reference_text": REFERENCE_TEXT,
        },
        "seed": recorded.seed(case),
    }
    for samples in await heard_chat(running, body):
        check_pcm16(samples, case, recorded)


SILENT_30_1_S = base64.b64encode(
    wav(np.zeros(round(30.1 * SAMPLE_RATE_HZ), np.int16), SAMPLE_RATE_HZ)
).decode()
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": ""}, "input"),
    ({"input": "word " * 5000}, "input"),
    ({"ref_audio": CLIP_DATA, "voice": VOICE_NAME}, "voice"),
    ({"ref_audio": SILENT_30_1_S}, "ref_audio"),
    ({"ref_text": "Hm."}, "ref_text"),
    ({"voice": "nobody"}, "voice"),
    ({"repetition_penalty": 1.2}, "repetition_penalty"),
    ({"top_k": 20}, "top_k"),
]


@pytest.mark.parametrize(
    ("fields", "param"), REFUSED, ids=[f"{'-'.join(each[0])}" for each in REFUSED]
)
async def test_what_cannot_be_done_returns_400_and_names_the_field(
    fields: dict[str, Any], param: str, speaking: dict[str, Running]
) -> None:
    body = {"model": MODEL, "input": "Hello"} | fields
    await check_refused_with_400(speaking[SERVED], body, param)
