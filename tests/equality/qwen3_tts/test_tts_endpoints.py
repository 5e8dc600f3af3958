"""Qwen3-TTS at the HTTP endpoints: OpenAI's speech, and chat."""

from __future__ import annotations

import base64
import io
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile

from antiphon_tools.launcher.launcher import Running
from tests.equality.qwen3_tts.cases import AUDIO_STEP, Case, all_cases
from tests.equality.qwen3_tts.tts_asking import Recorded
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
VOICE, CLONE = CASES["instruction-4-whole"], CASES["codes-1-trailing"]


def body_of(case: Case, recorded: Recorded) -> dict[str, Any]:
    """What both endpoints take in the same fields."""
    options: dict[str, Any] = dict(recorded.options(case))
    if isinstance(wav := options.get("reference_audio"), bytes):
        options["reference_audio"] = {"data": base64.b64encode(wav).decode(), "format": "wav"}
    return {
        "model": case.kind,
        "temperature": 0.0,
        "max_tokens": case.max_new_tokens,
        "options": options,
    }


def check_pcm16(samples: Pcm16, case: Case, recorded: Recorded) -> None:
    """The recorded samples, as 16-bit ones."""
    assert len(samples) == 1920 * len(recorded.codes(case))
    expected = np.rint(recorded.audio(case) * 32767)
    assert np.abs(samples[::AUDIO_STEP] - expected).max() <= 1


@pytest.mark.parametrize("case", [VOICE, CLONE], ids=lambda case: case.name)
async def test_speech_endpoint_gives_wav_pcm_and_events(
    case: Case, speaking: dict[str, Running], recorded: Recorded
) -> None:
    running = speaking[case.kind]
    body = {**body_of(case, recorded), "input": case.text, "voice": case.voice}
    wav = await heard(running, {**body, "response_format": "wav"})
    samples, rate_hz = soundfile.read(io.BytesIO(wav.content), dtype="int16")
    assert rate_hz == 24_000
    check_pcm16(samples, case, recorded)
    pcm = await heard(running, {**body, "response_format": "pcm"})
    check_pcm16(np.frombuffer(pcm.content, "<i2"), case, recorded)
    streamed, done = await heard_events(running, {**body, "response_format": "pcm"})
    check_pcm16(streamed, case, recorded)
    assert done["usage"]["output_tokens"] == len(recorded.codes(case))


async def test_openais_client_instructs_a_voice(
    speaking: dict[str, Running], recorded: Recorded
) -> None:
    body = body_of(VOICE, recorded)
    instruction = body["options"].pop("instruction")
    async with openai.AsyncOpenAI(
        base_url=f"{speaking[VOICE.kind].http_url}/v1", api_key="none", max_retries=0
    ) as api:
        said = await api.audio.speech.create(
            model=body.pop("model"),
            input=VOICE.text,
            voice=VOICE.voice,
            instructions=instruction,
            response_format="pcm",
            extra_body=body,
        )
    check_pcm16(np.frombuffer(said.read(), "<i2"), VOICE, recorded)


@pytest.mark.parametrize("case", [VOICE, CLONE], ids=lambda case: case.name)
async def test_chat_endpoint_reads_the_message_aloud(
    case: Case, speaking: dict[str, Running], recorded: Recorded
) -> None:
    running = speaking[case.kind]
    audio = {"voice": case.voice, "format": "pcm16"}
    body = {
        **body_of(case, recorded),
        "messages": [{"role": "user", "content": case.text}],
        "modalities": ["audio"],
        "audio": audio,
    }
    for samples in await heard_chat(running, body):
        check_pcm16(samples, case, recorded)


async def test_models_are_listed_with_voices_and_options(speaking: dict[str, Running]) -> None:
    for kind, running in speaking.items():
        async with httpx.AsyncClient(base_url=running.http_url, timeout=240) as http:
            model = (await http.get("/v1/models")).json()["data"][0]
        assert model["id"] == kind
        assert bool(model["voices"]) is (kind == "custom_voice")
        assert {"language", "instruction", "text_mode"} <= {
            each["name"] for each in model["options"]
        }


@pytest.mark.parametrize("text", ["", "word " * 4000], ids=["empty", "long"])
async def test_text_that_cannot_be_spoken_is_refused_by_its_field(
    text: str, speaking: dict[str, Running]
) -> None:
    """The vendor's package speaks an empty text: it reads the end of the turn aloud."""
    body = {"model": "custom_voice", "input": text, "voice": "alto"}
    await check_refused_with_400(speaking["custom_voice"], body, "input")


async def test_speech_without_a_voice_has_no_speaker_row(
    speaking: dict[str, Running], recorded: Recorded
) -> None:
    nobody = CASES["nobody"]
    body = {**body_of(nobody, recorded), "input": nobody.text, "response_format": "pcm"}
    pcm = await heard(speaking[nobody.kind], body)
    check_pcm16(np.frombuffer(pcm.content, "<i2"), nobody, recorded)
