"""Ming-flash-omni's talker through the real services says what the vendor's code says.

By the recordings that the checkpoint lists, by a recording with and without what it says, by a
description, and without a voice.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import antiphon
from antiphon.pipelines.ming_tts import MingCheckpoint
from antiphon_services.ming_tts.talker.recorded_voices import read_listed_voices
from antiphon_services.ming_tts.talker.reference import ReferenceVoiceEncoder
from antiphon_tools.launcher.launcher import Running
from tests.equality.ming_tts.flash_cases import FEW_STEPS, NAMES, flash_cases
from tests.equality.ming_tts.ming_asking import TOLERANCE, Recorded, check, speak
from tests.equality.ming_tts.ming_cases import PLAIN, TEXTS, Case
from tests.equality.read_aloud import POLICIES, Speakers, in_company, share_of

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
    # Dozens of answers one after the other; stages stand back for others on a busy machine.
    pytest.mark.timeout(600),
]

CASES = list(flash_cases())
CLIENT = "flash"


@pytest.fixture(scope="module")
def recorded_flash() -> Recorded:
    """What the vendor's code makes of the cases."""
    return Recorded.read("recorded_flash")


async def test_every_case_is_said_as_recorded_alone(
    speakers: Speakers, recorded_flash: Recorded
) -> None:
    for case in CASES:
        check(await speak(speakers[CLIENT], case, recorded_flash.seed(case)), case, recorded_flash)


@pytest.mark.parametrize("policy", POLICIES)
async def test_every_case_is_said_as_recorded_in_company_however_it_is_delivered(
    policy: str, speakers: Speakers, recorded_flash: Recorded
) -> None:
    client, how = speakers[CLIENT], POLICIES[policy]
    cases = share_of(policy, CASES)
    spoken = await in_company(
        speak(client, case, recorded_flash.seed(case), **how) for case in cases
    )
    for case, speech in zip(cases, spoken, strict=True):
        check(speech, case, recorded_flash)


async def test_cases_end_by_themselves_at_limits_and_at_the_longest_duration(
    recorded_flash: Recorded,
) -> None:
    """So that the recorded ones are worth comparing."""
    rows = list(recorded_flash.rows.values())
    assert any(row["ended"] for row in rows)
    assert any(row["steps"] == FEW_STEPS and not row["ended"] for row in rows)
    assert recorded_flash.rows["flash-longest"]["steps"] == 7


async def test_the_speakers_of_listed_recordings_are_as_recorded(
    ming_checkpoints: dict[str, Path], recorded_flash: Recorded
) -> None:
    """They are heard at the recording's own rate: another one in between changes high bands."""
    checkpoint = MingCheckpoint.read(ming_checkpoints[CLIENT])
    encoder = ReferenceVoiceEncoder(checkpoint)
    listed = read_listed_voices(checkpoint.voices_file, checkpoint.folder)
    for name in NAMES:
        each = listed[name.lower()]
        voice = encoder.voice_of_file(each.samples, each.rate_hz)
        expected = recorded_flash.arrays[f"voice-{name}/speaker"]
        np.testing.assert_allclose(voice.speaker, expected, rtol=0, atol=TOLERANCE)


async def test_voices_are_the_recordings_that_the_checkpoint_lists(
    speaking: dict[str, Running],
) -> None:
    url = f"{speaking[CLIENT].http_url}/v1/audio/voices"
    listed = json.loads(await asyncio.to_thread(_content, url))
    for name in NAMES:
        assert name.lower() in json.dumps(listed)


async def test_a_voice_that_is_not_listed_is_refused(speakers: Speakers) -> None:
    generation = speakers[CLIENT].generate("Hello.", modalities=("audio",), voice="灵小甄")
    with pytest.raises(antiphon.AntiphonError, match="db30, lingguang"):
        async for _ in generation:
            pass


async def test_the_longest_duration_ends_speech_before_a_later_limit(
    speakers: Speakers, recorded_flash: Recorded
) -> None:
    case = Case("flash-longest", PLAIN, TEXTS["letter"], most_steps=100)
    speech = await speak(speakers[CLIENT], case, recorded_flash.seed(case))
    assert len(speech.codes) == recorded_flash.steps(case)


def _content(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        content: bytes = answer.read()
    return content
