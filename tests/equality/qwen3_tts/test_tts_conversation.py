"""Conversations with Qwen3-TTS: the user's texts are spoken."""

from __future__ import annotations

import pytest

from antiphon.values.sampling import SamplingRequest
from antiphon_tools.launcher.launcher import Running
from tests.equality.qwen3_tts.cases import INSTRUCTION, REFERENCE_TEXT
from tests.equality.qwen3_tts.tts_asking import SAMPLES_PER_FRAME, Recorded
from tests.equality.read_aloud import Options, Speakers
from tests.equality.read_aloud_conversation import (
    REALTIME_HZ,
    check_fails,
    check_realtime_audio_lasts_as_long,
    check_texts_are_spoken_as_requests_are,
)

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

SAMPLING = SamplingRequest(seed=5, max_tokens=12)


async def test_texts_are_spoken_as_requests_are(speakers: Speakers) -> None:
    await check_texts_are_spoken_as_requests_are(speakers["custom_voice"], SAMPLING, voice="alto")


async def test_instructions_are_those_of_a_request(speakers: Speakers) -> None:
    await check_texts_are_spoken_as_requests_are(
        speakers["custom_voice"],
        SAMPLING,
        voice="alto",
        instructions=INSTRUCTION,
    )


async def test_a_model_without_voices_says_what_it_needs(speakers: Speakers) -> None:
    await check_fails(speakers["base"], "reference_audio")


async def test_options_clone_a_voice(speakers: Speakers, recorded: Recorded) -> None:
    options: Options = {"reference_audio": recorded.wav(), "reference_text": REFERENCE_TEXT}
    await check_texts_are_spoken_as_requests_are(speakers["base"], SAMPLING, options=options)


async def test_realtime_audio_is_the_models(speaking: dict[str, Running]) -> None:
    await check_realtime_audio_lasts_as_long(
        speaking["custom_voice"], "custom_voice", SAMPLES_PER_FRAME, REALTIME_HZ
    )
