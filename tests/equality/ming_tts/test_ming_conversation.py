"""Conversations with Ming TTS: the user's texts are spoken."""

from __future__ import annotations

import pytest

from antiphon.pipelines.ming_tts import FRAME_SAMPLES, SAMPLE_RATE_HZ
from antiphon.values.sampling import SamplingRequest
from antiphon_tools.launcher.launcher import Running
from tests.equality.ming_tts.ming_asking import CLIP_FILE
from tests.equality.ming_tts.ming_cases import REFERENCE_TEXT, STYLE, VOICE_NAME
from tests.equality.read_aloud import Options, Speakers
from tests.equality.read_aloud_conversation import (
    check_realtime_audio_lasts_as_long,
    check_texts_are_spoken_as_requests_are,
)

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

SAMPLING = SamplingRequest(seed=5, max_tokens=6)


@pytest.mark.parametrize(
    ("name", "voice"), [("windowed", VOICE_NAME), ("windowed", ""), ("flash", "lingguang")]
)
async def test_texts_are_spoken_as_requests_are(name: str, voice: str, speakers: Speakers) -> None:
    await check_texts_are_spoken_as_requests_are(speakers[name], SAMPLING, voice=voice)


async def test_instructions_describe_the_voice(speakers: Speakers) -> None:
    await check_texts_are_spoken_as_requests_are(
        speakers["windowed"],
        SAMPLING,
        voice=VOICE_NAME,
        instructions=STYLE,
    )


async def test_options_clone_a_voice(speakers: Speakers) -> None:
    options: Options = {"reference_audio": CLIP_FILE, "reference_text": REFERENCE_TEXT}
    await check_texts_are_spoken_as_requests_are(speakers["windowed"], SAMPLING, options=options)


async def test_realtime_audio_is_the_models_at_another_rate(speaking: dict[str, Running]) -> None:
    await check_realtime_audio_lasts_as_long(
        speaking["windowed"], "tiny", FRAME_SAMPLES, SAMPLE_RATE_HZ
    )
