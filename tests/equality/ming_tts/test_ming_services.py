"""Ming TTS through the real services says what the vendor's code says.

Latents and samples are equal however they are delivered and whoever shares the engines: twelve
texts without a voice, by the name of a voice, by a recording with and without what it says, and by
a description.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import antiphon
from antiphon import Delivery, FinishReason, Message
from antiphon.pipelines.ming_tts import FRAME_SAMPLES, FRAME_WIDTH, LATENT_SAMPLES, SAMPLE_RATE_HZ
from tests.equality.ming_tts.ming_asking import CLIP_FILE, TOLERANCE, Recorded, check, speak
from tests.equality.ming_tts.ming_cases import (
    LATENT_STEP,
    RATE_HZ,
    VOICE_NAME,
    all_cases,
    reference_audio,
)
from tests.equality.read_aloud import (
    POLICIES,
    SLOTS,
    Speakers,
    check_company_changes_nothing,
    check_refused,
    in_company,
    listen,
    share_of,
    wav,
)

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
    # Dozens of answers one after the other; stages stand back for others on a busy machine.
    pytest.mark.timeout(600),
]

CASES = {case.name: case for case in all_cases()}
RECORDING = "a recording"
CLIENT = "windowed"


async def test_every_case_is_said_as_recorded_alone(speakers: Speakers, recorded: Recorded) -> None:
    for case in CASES.values():
        check(await speak(speakers[CLIENT], case, recorded.seed(case)), case, recorded)


@pytest.mark.parametrize("policy", POLICIES)
async def test_every_case_is_said_as_recorded_in_company_however_it_is_delivered(
    policy: str, speakers: Speakers, recorded: Recorded
) -> None:
    cases = share_of(policy, CASES.values())
    client, how = speakers[CLIENT], POLICIES[policy]
    spoken = await in_company(speak(client, case, recorded.seed(case), **how) for case in cases)
    for case, speech in zip(cases, spoken, strict=True):
        check(speech, case, recorded)


async def test_cases_end_by_themselves_and_at_limits(recorded: Recorded) -> None:
    """So that the recorded ones are worth comparing; steps are odd and even in number."""
    ended = [recorded.rows[name]["ended"] for name in CASES]
    assert any(ended)
    assert not all(ended)
    assert {recorded.steps(case) % 2 for case in CASES.values()} == {0, 1}


@pytest.mark.parametrize("name", ["windowed", "unbounded"])
async def test_eight_sessions_with_different_seeds_say_what_each_says_alone(
    name: str, speakers: Speakers
) -> None:
    draw = partial(speak, speakers[name], CASES["clip-english"])
    await check_company_changes_nothing(draw, TOLERANCE)


async def test_first_audio_leaves_with_the_first_frame(
    speakers: Speakers, recorded: Recorded
) -> None:
    """Of its four latents three are complete, but for the samples that later windows overlap."""
    case = CASES["plain-english"]
    generation = speakers[CLIENT].generate(
        case.text, seed=recorded.seed(case), temperature=0.0, include_ids=True
    )
    first = await anext(generation)
    assert isinstance(first, antiphon.AudioDelta)
    assert len(first.float32) // 4 == 3 * LATENT_SAMPLES - 1323
    assert len(first.latents) // 4 == FRAME_WIDTH
    generation.cancel()


async def test_requests_leave_nothing_behind(speakers: Speakers, recorded: Recorded) -> None:
    """The same request says the same after others have used its slot."""
    case = CASES["description-english"]
    for _ in range(SLOTS + 1):
        check(await speak(speakers[CLIENT], case, recorded.seed(case)), case, recorded)


async def test_cancelled_sessions_give_their_slots_back(
    speakers: Speakers, recorded: Recorded
) -> None:
    case = CASES["plain-long"]
    for _ in range(SLOTS + 2):
        generation = speakers[CLIENT].generate(case.text, seed=recorded.seed(case))
        assert isinstance(await anext(generation), antiphon.AudioDelta)
        generation.cancel()
    check(await speak(speakers[CLIENT], case, recorded.seed(case)), case, recorded)


@pytest.mark.parametrize("steps", [1, 2, 5])
async def test_speech_is_cut_after_so_many_steps(
    steps: int, speakers: Speakers, recorded: Recorded
) -> None:
    case = CASES["plain-chinese"]
    generation = speakers[CLIENT].generate(
        case.text, seed=recorded.seed(case), max_tokens=steps, include_ids=True
    )
    speech = await listen(generation, FRAME_WIDTH)
    expected = recorded.of(case)["latents"][: 4 * steps]
    made = speech.codes.reshape(4 * steps, -1)[:, ::LATENT_STEP]
    np.testing.assert_allclose(made, expected, rtol=0, atol=TOLERANCE)
    assert len(speech.samples) == FRAME_SAMPLES * steps
    assert speech.finished.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("rate_hz", "channels", "seconds"),
    [(8_000, 1, 1.0), (24_000, 2, 2.3), (44_100, 1, 0.1), (44_100, 1, 30.0), (48_000, 1, 0.0)],
)
async def test_recordings_of_any_rate_clone_a_voice(
    rate_hz: int, channels: int, seconds: float, speakers: Speakers
) -> None:
    """Silence among them, where no length is given."""
    count = round((seconds or 1.0) * rate_hz)
    samples = np.resize(reference_audio(), (count, channels)) * (seconds > 0)
    options = {"reference_audio": wav(samples.astype(np.int16), rate_hz), "reference_text": "Hm."}
    generation = speakers[CLIENT].generate(
        "Hello", seed=3, options=options, max_tokens=3, include_ids=True
    )
    speech = await listen(generation, FRAME_WIDTH)
    assert np.isfinite(speech.samples).all()
    assert len(speech.samples) == FRAME_SAMPLES * len(speech.codes)


async def test_a_voice_may_be_described_in_parts_and_with_a_recording(speakers: Speakers) -> None:
    """Each part of the caption changes what is said."""
    asked: list[dict[str, Any]] = [
        {},
        {"voice": VOICE_NAME},
        {"voice": VOICE_NAME, "options": {"emotion": "高兴"}},
        *({"options": {name: "高"}} for name in ("dialect", "emotion", "pace", "pitch", "volume")),
        {"options": {"reference_audio": CLIP_FILE, "instruction": "Slowly."}},
        {"options": {"reference_audio": CLIP_FILE}},
    ]
    said = set()
    for request in asked:
        generation = speakers[CLIENT].generate(
            "Hello", seed=3, max_tokens=2, include_ids=True, **request
        )
        said.add((await listen(generation, FRAME_WIDTH)).codes.tobytes())
    assert len(said) == len(asked)


async def test_the_server_tells_what_the_model_takes(speakers: Speakers) -> None:
    (info,) = (await speakers[CLIENT].server_info()).models
    assert (info.output_kinds, info.sample_rate_hz) == (("audio",), SAMPLE_RATE_HZ)
    assert info.input_kinds == ("text",)
    assert VOICE_NAME in info.voices
    options = {option.name: option for option in info.options}
    assert options["reference_audio"].max_s == 30


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"voice": "nobody"}, "voice"),
    ({"voice": VOICE_NAME, "options": {"reference_audio": RECORDING}}, "voice"),
    ({"options": {"reference_text": "Hm."}}, "options.reference_text"),
    ({"options": {"reference_audio": b"RIFF"}}, "options.reference_audio"),
    ({"options": {"reference_audio": "too long"}}, "options.reference_audio"),
    ({"options": {"reference_audio": "too short"}}, "options.reference_audio"),
    ({"options": {"speed": 2.0}}, "options.speed"),
    ({"options": {"emotion": 2.0}}, "options.emotion"),
    ({"messages": ""}, "messages"),
    ({"messages": " \n"}, "messages"),
    ({"messages": "word " * 5000}, "messages"),
    ({"messages": [Message.system("Hm."), Message.user("Hm.")]}, "messages"),
    ({"modalities": ("text",)}, "modalities"),
    ({"top_p": 0.5}, "top_p"),
]
SPECIAL = {
    RECORDING: CLIP_FILE,
    "too long": wav(np.resize(reference_audio(), round(30.1 * RATE_HZ)), RATE_HZ),
    "too short": wav(reference_audio()[:4000], RATE_HZ),
}


@pytest.mark.parametrize(("request_", "field"), REFUSED)
async def test_what_cannot_be_done_is_refused_by_its_field(
    request_: dict[str, Any], field: str, speakers: Speakers
) -> None:
    await check_refused(speakers[CLIENT], request_, SPECIAL, field)


@pytest.mark.parametrize("delivery", Delivery)
async def test_both_checkpoints_speak(delivery: Delivery, speakers: Speakers) -> None:
    case = CASES["clip-english"]
    for client in speakers.values():
        speech = await speak(client, case, 1, delivery=delivery)
        assert len(speech.samples) == FRAME_SAMPLES * len(speech.codes) > 0
