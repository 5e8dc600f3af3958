"""CosyVoice3 through the real services says what the vendor's code says.

Codes are identical and audio equal however it is delivered and whoever shares the engines: ten
texts, zero-shot, cross-lingual, instruct and with voices of the checkpoint. Whole delivery is the
vendor's `stream=False`, the other its flow with the block mask.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import antiphon
from antiphon import Delivery, FinishReason, Message
from tests.equality.cosyvoice3.cosy_asking import AUDIO_TOLERANCE, Recorded, check, speak
from tests.equality.cosyvoice3.cosy_cases import all_cases, reference_audio
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
]

CASES = {case.name: case for case in all_cases()}
RECORDING = "a recording"


@pytest.mark.parametrize("delivery", Delivery)
async def test_every_case_is_said_as_recorded_alone(
    delivery: Delivery, speakers: Speakers, recorded: Recorded
) -> None:
    for case in CASES.values():
        seed = recorded.seeds[case.name]
        speech = await speak(speakers["voices"], case, seed, delivery=delivery)
        check(speech, case, recorded, delivery)


@pytest.mark.parametrize("policy", POLICIES)
async def test_every_case_is_said_as_recorded_in_company_however_it_is_delivered(
    policy: str, speakers: Speakers, recorded: Recorded
) -> None:
    cases = share_of(policy, CASES.values())
    client, how = speakers["voices"], POLICIES[policy]
    spoken = await in_company(
        speak(client, case, recorded.seeds[case.name], **how) for case in cases
    )
    for case, speech in zip(cases, spoken, strict=True):
        check(speech, case, recorded, how.get("delivery"))


async def test_a_long_text_is_spoken_in_several_utterances(recorded: Recorded) -> None:
    """So that the recorded cases have some; the split is the vendor's."""
    marked = {
        name: int((recorded.codes(case) >= 6561).sum())
        for name, case in CASES.items()
        if name.endswith("-long")
    }
    assert marked["zero-shot-long"] > 3
    assert marked["instruct-long"] > 3
    assert marked["cross-lingual-long"] == marked["sft-long"] == 0


async def test_answers_end_at_and_beside_the_chunks_of_a_policy(recorded: Recorded) -> None:
    """So that the recorded cases have some: after the first chunk, the ramp and a steady one."""
    counts = {len(recorded.codes(case)) for case in CASES.values()}
    policy = POLICIES["odd"]["policy"]
    first, ramp, steady = policy.first, sum(policy.ramp), policy.steady
    assert {first - 1, first, first + 1, first + ramp, first + ramp + 1} <= counts
    assert {each % steady for each in counts if each > first + ramp} == set(range(steady))


async def test_eight_sessions_with_different_seeds_say_what_each_says_alone(
    speakers: Speakers,
) -> None:
    draw = partial(speak, speakers["clones"], CASES["zero-shot-english"])
    await check_company_changes_nothing(draw, AUDIO_TOLERANCE)


async def test_requests_leave_nothing_behind(speakers: Speakers, recorded: Recorded) -> None:
    """The same request says the same after others have used its slot."""
    case = CASES["instruct-english"]
    for _ in range(SLOTS + 1):
        check(await speak(speakers["voices"], case, recorded.seeds[case.name]), case, recorded)


async def test_cancelled_sessions_give_their_slots_back(
    speakers: Speakers, recorded: Recorded
) -> None:
    case = CASES["zero-shot-long"]
    for _ in range(SLOTS + 2):
        generation = speakers["voices"].generate(
            case.text,
            seed=recorded.seeds[case.name],
            options={"reference_audio": wav(reference_audio()), "reference_text": "Hm."},
        )
        assert isinstance(await anext(generation), antiphon.AudioDelta)
        generation.cancel()
    check(await speak(speakers["voices"], case, recorded.seeds[case.name]), case, recorded)


@pytest.mark.parametrize("draws", [1, 2, 5])
async def test_speech_is_cut_after_so_many_draws(
    draws: int, speakers: Speakers, recorded: Recorded
) -> None:
    case = CASES["sft-chinese"]
    generation = speakers["voices"].generate(
        case.text,
        voice=case.voice,
        seed=recorded.seeds[case.name],
        max_tokens=draws,
        include_ids=True,
    )
    speech = await listen(generation)
    np.testing.assert_array_equal(speech.codes, recorded.codes(case)[:draws])
    assert len(speech.samples) == 960 * draws
    assert speech.finished.finish_reason is FinishReason.LENGTH


async def test_a_request_without_a_voice_has_the_first(
    speakers: Speakers, recorded: Recorded
) -> None:
    case = CASES["sft-english"]
    generation = speakers["voices"].generate(
        case.text, seed=recorded.seeds[case.name], include_ids=True
    )
    check(await listen(generation), case, recorded)


@pytest.mark.parametrize(
    ("rate_hz", "channels", "seconds"),
    [(8_000, 1, 1.0), (44_100, 2, 2.3), (24_000, 1, 0.1), (24_000, 1, 30.0), (48_000, 1, 0.0)],
)
async def test_recordings_of_any_rate_clone_a_voice(
    rate_hz: int, channels: int, seconds: float, speakers: Speakers
) -> None:
    """Silence among them, where no length is given."""
    count = round((seconds or 1.0) * rate_hz)
    samples = np.resize(reference_audio(), (count, channels)) * (seconds > 0)
    options = {"reference_audio": wav(samples.astype(np.int16), rate_hz), "reference_text": "Hm."}
    generation = speakers["clones"].generate("Hello", seed=3, options=options, include_ids=True)
    speech = await listen(generation)
    assert np.isfinite(speech.samples).all()
    assert len(speech.samples) == 960 * len(speech.codes)


async def test_the_server_tells_what_the_model_takes(speakers: Speakers) -> None:
    for name, client in speakers.items():
        (info,) = (await client.server_info()).models
        assert (info.output_kinds, info.sample_rate_hz) == (("audio",), 24_000)
        assert info.input_kinds == ("text",)
        assert info.voices == (("alto", "bass", "clara") if name == "voices" else ())
        options = {option.name: option for option in info.options}
        assert options["reference_audio"].max_s == 30


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("voices", {"voice": "nobody"}, "voice"),
    ("voices", {"voice": "alto", "options": {"reference_audio": RECORDING}}, "voice"),
    ("voices", {"options": {"instruction": "Sing."}}, "options.instruction"),
    ("voices", {"options": {"reference_text": "Hm."}}, "options.reference_text"),
    ("voices", {"options": {"reference_audio": RECORDING, "reference_text": "Hm.",
                            "instruction": "Sing."}}, "options.reference_text"),
    ("voices", {"options": {"reference_audio": b"RIFF"}}, "options.reference_audio"),
    ("voices", {"options": {"reference_audio": "too long"}}, "options.reference_audio"),
    ("voices", {"options": {"reference_audio": "too short"}}, "options.reference_audio"),
    ("voices", {"options": {"speed": 2.0}}, "options.speed"),
    ("voices", {"messages": ""}, "messages"),
    ("voices", {"messages": "?!", "options": {"reference_audio": RECORDING,
                                              "reference_text": "Hm."}}, "messages"),
    ("voices", {"messages": "word " * 5000}, "messages"),
    ("voices", {"messages": [Message.system("Hm."), Message.user("Hm.")]}, "messages"),
    ("voices", {"modalities": ("text",)}, "modalities"),
    ("clones", {}, "options.reference_audio"),
    ("clones", {"voice": "alto"}, "voice"),
]  # fmt: skip
SPECIAL = {
    RECORDING: wav(reference_audio()),
    "too long": wav(np.resize(reference_audio(), round(30.1 * 24_000))),
    "too short": wav(reference_audio()[:2000]),
}


@pytest.mark.parametrize(("name", "request_", "field"), REFUSED)
async def test_what_cannot_be_done_is_refused_by_its_field(
    name: str, request_: dict[str, Any], field: str, speakers: Speakers
) -> None:
    await check_refused(speakers[name], request_, SPECIAL, field)
