"""Conversations with CosyVoice3: the user's texts are spoken."""

from __future__ import annotations

import pytest

from antiphon.values.sampling import SamplingRequest
from antiphon_tools.launcher.launcher import Running
from tests.equality.cosyvoice3.cosy_asking import SAMPLES_PER_CODE
from tests.equality.cosyvoice3.cosy_cases import ADDED_VOICE, INSTRUCTION, VOICE, reference_audio
from tests.equality.read_aloud import Speakers, wav
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

SAMPLING = SamplingRequest(seed=5, max_tokens=30)


@pytest.mark.parametrize("voice", [VOICE, ADDED_VOICE])
async def test_texts_are_spoken_as_requests_are(voice: str, speakers: Speakers) -> None:
    await check_texts_are_spoken_as_requests_are(speakers["voices"], SAMPLING, voice=voice)


async def test_instructions_go_with_a_recording(speakers: Speakers) -> None:
    await check_fails(speakers["clones"], "instructions: requires", instructions=INSTRUCTION)
    await check_texts_are_spoken_as_requests_are(
        speakers["clones"],
        SAMPLING,
        instructions=INSTRUCTION,
        options={"reference_audio": wav(reference_audio())},
    )


async def test_a_model_without_voices_says_what_it_needs(speakers: Speakers) -> None:
    await check_fails(speakers["clones"], "reference_audio")


async def test_realtime_audio_is_the_models(speaking: dict[str, Running]) -> None:
    await check_realtime_audio_lasts_as_long(
        speaking["voices"], "voices", SAMPLES_PER_CODE, REALTIME_HZ, VOICE
    )
