"""Qwen3-TTS through the real services says what the vendor's package says.

Codes are identical and audio equal however it is delivered and whoever shares the engines:
five texts in both text modes with a voice, a language, an instruction, and both ways of cloning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import antiphon
from antiphon import ChunkPolicy, FinishReason, Message
from tests.equality.qwen3_tts.cases import all_cases
from tests.equality.qwen3_tts.tts_asking import AUDIO_TOLERANCE, Recorded, check, speak
from tests.equality.read_aloud import (
    POLICIES,
    SLOTS,
    Speakers,
    Speech,
    check_company_changes_nothing,
    check_refused,
    in_company,
    listen,
)

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

CASES = {case.name: case for case in all_cases()}
KINDS = ("custom_voice", "base")
CUSTOM, BASE = CASES["voice-1-trailing"], CASES["codes-1-trailing"]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_case_is_said_as_recorded_alone_and_in_company_however_it_is_delivered(
    kind: str, speakers: Speakers, recorded: Recorded
) -> None:
    cases = [case for case in CASES.values() if case.kind == kind]
    alone = [await speak(speakers[kind], case, recorded) for case in cases[::4]]
    for case, speech in zip(cases[::4], alone, strict=True):
        check(speech, case, recorded)
    whole: list[Speech] = []
    for name, how in POLICIES.items():
        spoken = await in_company(speak(speakers[kind], case, recorded, **how) for case in cases)
        whole = whole or spoken
        for case, speech, at_once in zip(cases, spoken, whole, strict=True):
            check(speech, case, recorded)
            # Of the recorded audio only some samples are kept; here all of them are compared.
            np.testing.assert_allclose(
                speech.samples, at_once.samples, rtol=0, atol=AUDIO_TOLERANCE
            )
            # More than a step of the decoder, even if all of it had waited.
            if name != "whole" and case.name == "long":
                assert speech.deltas > 1


@pytest.mark.parametrize("kind", KINDS)
async def test_eight_sessions_with_different_seeds_say_what_each_says_alone(
    kind: str, speakers: Speakers, recorded: Recorded
) -> None:
    case = CUSTOM if kind == "custom_voice" else BASE

    async def draw(seed: int) -> Speech:
        generation = speakers[kind].generate(
            case.text,
            voice=case.voice,
            seed=seed,
            max_tokens=12,
            options=recorded.options(case),
            include_ids=True,
        )
        return await listen(generation, recorded.codes(case).shape[1])

    await check_company_changes_nothing(draw, AUDIO_TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_sessions_give_their_slots_back(
    kind: str, speakers: Speakers, recorded: Recorded
) -> None:
    case = CASES["long"] if kind == "custom_voice" else CASES["codes-4-trailing"]
    for _ in range(SLOTS + 2):
        generation = speakers[kind].generate(
            case.text,
            voice=case.voice,
            max_tokens=2000,
            options=recorded.options(case),
            chunk_policy=ChunkPolicy(first=1, ramp=(), steady=1),
        )
        assert isinstance(await anext(generation), antiphon.AudioDelta)
        generation.cancel()
    check(await speak(speakers[kind], case, recorded), case, recorded)


@pytest.mark.parametrize(("draws", "frames"), [(1, 0), (2, 1), (3, 2)])
async def test_speech_of_few_draws_has_one_frame_less(
    draws: int, frames: int, speakers: Speakers, recorded: Recorded
) -> None:
    """Two draws are the least that the vendor's package takes; one is audio without samples."""
    generation = speakers["base"].generate(
        BASE.text,
        temperature=0.0,
        max_tokens=draws,
        options=recorded.options(BASE),
        include_ids=True,
    )
    speech = await listen(generation, recorded.codes(BASE).shape[1])
    np.testing.assert_array_equal(speech.codes, recorded.codes(BASE)[:frames])
    assert len(speech.samples) == 1920 * frames
    assert speech.finished.finish_reason is FinishReason.LENGTH


async def test_a_request_without_a_voice_has_no_speaker_row(
    speakers: Speakers, recorded: Recorded
) -> None:
    """As in the vendor's package: neither the first voice of the checkpoint nor its dialect."""
    nobody, first = CASES["nobody"], CASES["voice-1-trailing"]
    assert recorded.codes(nobody).tolist() != recorded.codes(first).tolist()
    check(await speak(speakers["custom_voice"], nobody, recorded), nobody, recorded)


async def test_text_mode_that_is_not_given_is_that_of_the_kind(
    speakers: Speakers, recorded: Recorded
) -> None:
    """As the vendor's package has it: all text first with preset voices, streamed for clones."""
    for case in (CASES["voice-1-whole"], BASE):
        options = recorded.options(case)
        del options["text_mode"]
        generation = speakers[case.kind].generate(
            case.text,
            voice=case.voice,
            temperature=0.0,
            max_tokens=case.max_new_tokens,
            options=options,
            include_ids=True,
        )
        check(await listen(generation, recorded.codes(case).shape[1]), case, recorded)


async def test_the_server_tells_what_each_kind_takes(speakers: Speakers) -> None:
    for kind, client in speakers.items():
        (info,) = (await client.server_info()).models
        assert info.name == kind
        assert (info.output_kinds, info.sample_rate_hz) == (("audio",), 24_000)
        assert info.input_kinds == ("text",)
        assert bool(info.voices) is (kind == "custom_voice")
        options = {option.name: option for option in info.options}
        assert options["text_mode"].choices == ("whole", "stream")
        assert {"auto", "english", "chinese"} <= set(options["language"].choices)
        assert options["reference_audio"].max_s == 60


RECORDING = "a recording"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("custom_voice", {"voice": "nobody"}, "voice"),
    ("custom_voice", {"options": {"language": "elvish"}}, "options.language"),
    ("custom_voice", {"options": {"text_mode": "half"}}, "options.text_mode"),
    ("custom_voice", {"options": {"reference_audio": RECORDING}}, "options.reference_audio"),
    ("custom_voice", {"options": {"reference_text": "Hm."}}, "options.reference_text"),
    ("custom_voice", {"options": {"speed": 2.0}}, "options.speed"),
    ("custom_voice", {"messages": ""}, "messages"),
    ("custom_voice", {"messages": "word " * 4000}, "messages"),
    ("custom_voice", {"messages": [Message.system("Hm."), Message.user("Hm.")]}, "messages"),
    ("custom_voice", {"modalities": ("text",)}, "modalities"),
    ("base", {}, "options.reference_audio"),
    ("base", {"options": {"reference_audio": b"RIFF"}}, "options.reference_audio"),
    ("base", {"options": {"instruction": "Sing.", "reference_audio": RECORDING}},
     "options.instruction"),
    ("base", {"voice": "alto", "options": {"reference_audio": RECORDING}}, "voice"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "request_", "field"), REFUSED)
async def test_what_a_checkpoint_cannot_do_is_refused_by_its_field(
    kind: str, request_: dict[str, Any], field: str, speakers: Speakers, recorded: Recorded
) -> None:
    await check_refused(speakers[kind], request_, {RECORDING: recorded.wav()}, field)
