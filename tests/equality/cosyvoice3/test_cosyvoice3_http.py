"""CosyVoice3 at the HTTP endpoints: OpenAI's speech, and chat."""

from __future__ import annotations

import base64
import io
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile

from antiphon import Delivery
from antiphon_tools.launcher.launcher import Running
from tests.equality.cosyvoice3.cosy_asking import SAMPLES_PER_CODE, Recorded
from tests.equality.cosyvoice3.cosy_cases import (
    AUDIO_STEP,
    CROSS_LINGUAL,
    INSTRUCT,
    INSTRUCTION,
    REFERENCE_TEXT,
    ZERO_SHOT,
    Case,
    all_cases,
    reference_audio,
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
NAMED = CASES["sft-english"]
CLONES = [CASES[f"{mode}-chinese"] for mode in (ZERO_SHOT, CROSS_LINGUAL, INSTRUCT)]
CLIP = base64.b64encode(wav(reference_audio())).decode()


def body_of(case: Case, recorded: Recorded) -> dict[str, Any]:
    """A request to read a case aloud, in the fields that other servers have."""
    body: dict[str, Any] = {
        "model": "voices",
        "input": case.text,
        "seed": recorded.seeds[case.name],
        "response_format": "pcm",
    }
    if case.voice:
        return body | {"voice": case.voice}
    body["ref_audio"] = f"data:audio/wav;base64,{CLIP}"
    if case.mode == ZERO_SHOT:
        body["ref_text"] = REFERENCE_TEXT
    elif case.mode == INSTRUCT:
        body["instructions"] = INSTRUCTION
    return body


def check_pcm16(
    samples: Pcm16, case: Case, recorded: Recorded, delivery: Delivery | None = None
) -> None:
    """The recorded samples, as 16-bit ones: 1e-4 of full scale is three of their steps."""
    assert len(samples) == SAMPLES_PER_CODE * len(recorded.codes(case))
    expected = np.rint(recorded.audio(case, delivery) * 32767)
    assert np.abs(samples[::AUDIO_STEP] - expected).max() <= 4


@pytest.mark.parametrize("case", [NAMED, *CLONES], ids=lambda case: case.name)
async def test_speech_is_the_recorded_one_in_every_mode(
    case: Case, speaking: dict[str, Running], recorded: Recorded
) -> None:
    pcm = await heard(speaking["voices"], body_of(case, recorded))
    check_pcm16(np.frombuffer(pcm.content, "<i2"), case, recorded)


async def test_speech_comes_as_a_file_or_as_events(
    speaking: dict[str, Running], recorded: Recorded
) -> None:
    case, running = CLONES[0], speaking["voices"]
    body = body_of(case, recorded)
    file = await heard(running, body | {"response_format": "wav", "delivery": "whole"})
    samples, rate_hz = soundfile.read(io.BytesIO(file.content), dtype="int16")
    assert rate_hz == 24_000
    check_pcm16(samples, case, recorded, Delivery.WHOLE)
    streamed, done = await heard_events(running, body)
    check_pcm16(streamed, case, recorded)
    assert done["usage"]["output_tokens"] == len(recorded.codes(case))


async def test_options_have_the_names_that_the_model_lists(
    speaking: dict[str, Running], recorded: Recorded
) -> None:
    running = speaking["voices"]
    async with httpx.AsyncClient(base_url=running.http_url, timeout=240) as http:
        model = (await http.get("/v1/models")).json()["data"][0]
    assert model["voices"] == ["alto", "bass", "clara"]
    assert {each["name"] for each in model["options"]} == {
        "instruction",
        "least_codes_per_token",
        "reference_audio",
        "reference_text",
    }
    case = CLONES[0]
    options = {
        "reference_audio": {"data": CLIP, "format": "wav"},
        "reference_text": REFERENCE_TEXT,
    }
    body = body_of(case, recorded) | {"options": options}
    del body["ref_audio"], body["ref_text"]
    pcm = await heard(running, body)
    check_pcm16(np.frombuffer(pcm.content, "<i2"), case, recorded)


async def test_openais_client_instructs_a_clone(
    speaking: dict[str, Running], recorded: Recorded
) -> None:
    case = CASES["instruct-english"]
    body = body_of(case, recorded)
    async with openai.AsyncOpenAI(
        base_url=f"{speaking['voices'].http_url}/v1", api_key="none", max_retries=0
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
    case, running = NAMED, speaking["voices"]
    body = {
        "model": "voices",
        "messages": [{"role": "user", "content": case.text}],
        "modalities": ["audio"],
        "audio": {"voice": case.voice, "format": "pcm16"},
        "seed": recorded.seeds[case.name],
    }
    for samples in await heard_chat(running, body):
        check_pcm16(samples, case, recorded)


SILENT_30_1_S = base64.b64encode(wav(np.zeros(round(30.1 * 24_000), np.int16))).decode()
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("voices", {"input": ""}, "input"),
    ("voices", {"input": "word " * 5000}, "input"),
    ("voices", {"ref_audio": CLIP, "ref_text": "Hm.", "instructions": "Sing."}, "ref_text"),
    ("voices", {"ref_audio": CLIP, "voice": "alto"}, "voice"),
    ("voices", {"ref_audio": SILENT_30_1_S}, "ref_audio"),
    ("voices", {"ref_text": "Hm."}, "ref_text"),
    ("voices", {"instructions": "Sing."}, "instructions"),
    ("voices", {"voice": "nobody"}, "voice"),
    ("voices", {"repetition_penalty": 1.2}, "repetition_penalty"),
    ("clones", {}, "options.reference_audio"),
]


@pytest.mark.parametrize(
    ("model", "fields", "param"), REFUSED, ids=[f"{'-'.join(each[1])}" for each in REFUSED]
)
async def test_what_cannot_be_done_returns_400_and_names_the_field(
    model: str, fields: dict[str, Any], param: str, speaking: dict[str, Running]
) -> None:
    body = {"model": model, "input": "Hello"} | fields
    await check_refused_with_400(speaking[model], body, param)
