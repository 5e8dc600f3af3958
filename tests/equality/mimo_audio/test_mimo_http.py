"""MiMo-Audio at the HTTP endpoints: speech, chat, and transcriptions by its own tasks."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from antiphon_testkit.mimo_audio.tiny_checkpoint import EMPTY, LANGUAGE_MODEL
from antiphon_tools.launcher.launcher import Running
from tests.equality.mimo_audio.mimo_asking import wav
from tests.equality.mimo_audio.mimo_cases import (
    AUDIO_STEP,
    CASES,
    SAMPLES_PER_FRAME,
    clips,
)
from tests.equality.mimo_audio.mimo_lab import Recorded
from tests.equality.read_aloud_http import CHAT, ask, check_refused_with_400, heard

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

BY_NAME = {case.name: case for case in CASES}
PRESET = "marks"
GREEDY = {"temperature": 0.0, "options": {"code_temperature": 0}}
VOICE = base64.b64encode(wav(clips()["voice"])).decode()


def spoken_text(recorded: Recorded, stem: str, ids: dict[str, int], *, groups: bool = True) -> str:
    """The text of an answer, which small letters and spaces make up in a tiny checkpoint; without
    `groups`, what comes before the first group of codes."""
    letters = {number: name for name, number in ids.items()}
    drawn = [letters[each] for each in recorded.arrays[f"{stem}/text"].tolist()]
    if not groups:
        drawn = drawn[: drawn.index(EMPTY)]
    return "".join(each for each in drawn if not each.startswith("<|")).replace("\u0120", " ")


@pytest.mark.parametrize("name", ["tts-english", "tts-instruct"])
async def test_speech_endpoint_reads_aloud_by_the_task(
    name: str, speaking: dict[str, Running], recorded: Recorded
) -> None:
    case, stem = BY_NAME[name], f"{PRESET}/{name}"
    body = {
        "model": LANGUAGE_MODEL,
        "input": case.text,
        "max_tokens": case.most,
        "response_format": "pcm",
        "delivery": "whole",
        **GREEDY,
    }
    if case.instruct is not None:
        body["instructions"] = case.instruct
    pcm = np.frombuffer((await heard(speaking[PRESET], body)).content, "<i2")
    assert len(pcm) == recorded.rows[stem]["samples"] > 0
    audio = np.rint(recorded.arrays[f"{stem}/audio"] * 32767)
    assert np.abs(pcm[::AUDIO_STEP] - audio).max() <= 4


@pytest.mark.parametrize("clip", ["voice", "odd", "silence"])
async def test_transcriptions_endpoint_writes_down_by_the_task(
    clip: str,
    speaking: dict[str, Running],
    recorded: Recorded,
    mimo_labs: dict[str, Any],
) -> None:
    """The vendor's request takes the place of the gateway's instruction. Text is greedy by itself
    and codes are drawn, so the text is the recorded one up to the first group of codes."""
    case = BY_NAME[f"asr-{clip}"]
    async with openai.AsyncOpenAI(
        base_url=f"{speaking[PRESET].http_url}/v1", api_key="none", max_retries=0
    ) as api:
        written = await api.audio.transcriptions.create(
            model=LANGUAGE_MODEL,
            file=("said.wav", wav(clips()[clip])),
            extra_body={"max_completion_tokens": case.most, "seed": 3},
        )
    begins = spoken_text(recorded, f"{PRESET}/{case.name}", mimo_labs[PRESET].ids, groups=False)
    assert begins
    assert written.text.startswith(begins)
    assert EMPTY not in written.text


async def test_verbose_transcripts_have_the_text(speaking: dict[str, Running]) -> None:
    """They come with log probabilities."""
    async with openai.AsyncOpenAI(
        base_url=f"{speaking[PRESET].http_url}/v1", api_key="none", max_retries=0
    ) as api:
        written = await api.audio.transcriptions.create(
            model=LANGUAGE_MODEL,
            file=("said.wav", wav(clips()["silence"])),
            response_format="verbose_json",
            extra_body={"max_completion_tokens": 12},
        )
    assert written.text
    assert abs(written.duration - 0.5) < 0.01


async def test_chat_answers_a_spoken_question_with_text_and_speech(
    speaking: dict[str, Running], recorded: Recorded, mimo_labs: dict[str, Any]
) -> None:
    case = BY_NAME["dialogue-system"]
    sound = base64.b64encode(wav(clips()[case.clip])).decode()
    body = {
        "model": LANGUAGE_MODEL,
        "messages": [
            {"role": "system", "content": case.system},
            {
                "role": "user",
                "content": [
                    {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}
                ],
            },
        ],
        "modalities": ["text", "audio"],
        "audio": {"format": "pcm16"},
        "max_tokens": case.most,
        **GREEDY,
    }
    answer = (await heard(speaking[PRESET], body, CHAT)).json()
    message, stem = answer["choices"][0]["message"], f"{PRESET}/{case.name}"
    samples = np.frombuffer(base64.b64decode(message["audio"]["data"]), "<i2")
    assert len(samples) == recorded.rows[stem]["samples"] > 0
    assert len(samples) % SAMPLES_PER_FRAME == 0
    said = message["audio"]["transcript"]
    assert said == spoken_text(recorded, stem, mimo_labs[PRESET].ids)
    positions = recorded.rows[stem]["positions"]
    frames = len(samples) // SAMPLES_PER_FRAME
    assert answer["usage"]["completion_tokens"] == positions + frames


async def test_model_lists_its_tasks_and_options(speaking: dict[str, Running]) -> None:
    async with httpx.AsyncClient(base_url=speaking[PRESET].http_url, timeout=240) as http:
        model = (await http.get("/v1/models")).json()["data"][0]
    assert set(model["outputs"]) == {"text", "audio"}
    options = {each["name"]: each for each in model["options"]}
    assert options["task"]["choices"] == ["dialogue", "speech", "transcription"]
    assert {"instruction", "thinking", "reference_audio", "code_temperature"} <= options.keys()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": "word " * 2000}, "input"),
    ({"ref_audio": VOICE}, "ref_audio"),
    ({"instructions": "Sing.", "options": {"described": "yes"}}, "instructions"),
    ({"options": {"thinking": "yes"}}, "options.thinking"),
    ({"options": {"task": "dance"}}, "options.task"),
    ({"options": {"code_top_p": 2}}, "options.code_top_p"),
    ({"voice": "alto"}, "voice"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[each[1] for each in REFUSED])
async def test_what_cannot_be_done_returns_400_and_names_the_field(
    fields: dict[str, Any], param: str, speaking: dict[str, Running]
) -> None:
    body = {"model": LANGUAGE_MODEL, "input": "Hello"} | fields
    await check_refused_with_400(speaking[PRESET], body, param)


CHAT_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"options": {"instruction": "Sing."}}, "options.instruction"),
    ({"options": {"thinking": "yes"}, "modalities": ["text", "audio"]}, "options.thinking"),
    ({"messages": [{"role": "assistant", "content": "Hello"}]}, "messages"),
]


@pytest.mark.parametrize(("fields", "param"), CHAT_REFUSED, ids=[each[1] for each in CHAT_REFUSED])
async def test_what_a_chat_cannot_ask_for_returns_400_and_names_the_field(
    fields: dict[str, Any], param: str, speaking: dict[str, Running]
) -> None:
    body = {"model": LANGUAGE_MODEL, "messages": [{"role": "user", "content": "Hello"}]} | fields
    if "audio" in body.get("modalities", ()):
        body["audio"] = {"format": "wav"}
    refused = await ask(speaking[PRESET], body, CHAT)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == param, refused.text
