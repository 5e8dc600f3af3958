"""The main law: through the real processes, greedy fp32 output equals Hugging Face's.

Text ids and codec codes are equal, audio is within 1e-4 of the one-shot decode of
those codes: for text, audio and mixed prompts, conversations, every voice, stop and
length finishes, every number of frames across the chunk policy, both deliveries, any
chunk policy, alone and in company.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

import antiphon
from antiphon import ChunkPolicy, Delivery, FinishReason
from antiphon_testkit.conversations import conversation
from antiphon_testkit.qwen3_omni.reference import Case
from tests.equality.asking import AUDIO_TOLERANCE, RATE, Answer, ask, check, decode, groups
from tests.equality.truth import Truth

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]


def sweep(seconds: float, low: float, high: float) -> npt.NDArray[np.float32]:
    """A sine sweep with a little noise, as a recording."""
    time = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * (low * time + (high - low) * time**2 / (2 * seconds))
    noise = np.random.default_rng(int(low)).normal(0, 0.01, len(time))
    return (0.4 * np.sin(phase) + noise).astype(np.float32)


LONG = " ".join(f"number {count} of the many words that people say" for count in range(40))

TEXTS = [
    "Hello, how are you today?",
    "What is the weather like?",
    "Say something about water.",
    "Who made the first word?",
    "Tell me how to write a letter to other people.",
    "Ünïcödé 你好 😀 and more",
    "x",
]
TEXT_CASES = [Case(conversation(("user", text)), talker_max_tokens=41) for text in TEXTS]
LONG_CASES = [
    Case(conversation(("user", f"{text} {LONG}")), talker_max_tokens=20) for text in TEXTS
]
AUDIO_CASES = [
    Case(conversation(("user", sweep(seconds, low, 3 * low))), talker_max_tokens=20)
    for seconds, low in ((1.0, 200.0), (0.3, 300.0), (2.37, 150.0), (0.7, 500.0))
]
MIXED_CASES = [
    Case(
        conversation(
            ("system", "You are a quiet voice."),
            ("user", [sweep(0.5, low, 900.0), "and then", sweep(0.8, low + 50, 400.0), "what?"]),
        ),
        talker_max_tokens=20,
    )
    for low in (100.0, 220.0, 330.0, 440.0)
]
TURN_CASES = [
    Case(
        conversation(
            ("system", "Be brief."),
            ("user", ["Listen:", sweep(0.6, low, 700.0)]),
            ("assistant", "I hear a sound."),
            ("user", text),
            ("assistant", "Yes."),
            ("user", [sweep(0.4, low, 300.0), "And now?"]),
        ),
        talker_max_tokens=20,
    )
    for low, text in ((120.0, "What else?"), (240.0, "Again."), (360.0, "Go on."), (99.0, "No?"))
]
LENGTH_CASES = [
    replace(case, thinker_max_tokens=limit, talker_max_tokens=30)
    for case in TEXT_CASES
    for limit in (2, 3, 4)
]


MOST_FRAMES = 60
AT_ONCE = 8
FRAMES_CASES = [
    Case(conversation(("user", text)), thinker_max_tokens=200, talker_max_tokens=MOST_FRAMES + 1)
    for text in ("What one", "number one", "Hello one", "long one", "find one", "find two?")
]


@pytest.mark.parametrize("delivery", [None, Delivery.WHOLE])
@pytest.mark.parametrize(
    ("candidates", "wanted"),
    [
        pytest.param(TEXT_CASES, 4, id="text"),
        pytest.param(LONG_CASES, 1, id="long"),
        pytest.param(AUDIO_CASES, 2, id="audio"),
        pytest.param(MIXED_CASES, 1, id="mixed"),
        pytest.param(TURN_CASES, 1, id="turns"),
        pytest.param(LENGTH_CASES, 4, id="length"),
    ],
)
async def test_answer_equals_the_reference(
    client: antiphon.AsyncClient,
    truth: Truth,
    candidates: list[Case],
    wanted: int,
    delivery: Delivery | None,
) -> None:
    for case in truth.safe(candidates, wanted):
        answer = await ask(client, case, groups=groups(truth), delivery=delivery)
        check(answer, truth.of(case))
        if delivery is Delivery.WHOLE:
            assert answer.audio_deltas <= 1


async def test_cases_cover_stop_and_length_finishes_and_codec_eos(truth: Truth) -> None:
    outputs = [truth.of(case) for case in [*truth.safe(TEXT_CASES, 4), *LENGTH_CASES[:6]]]
    assert {each.text_finish for each in outputs} == {FinishReason.STOP, FinishReason.LENGTH}
    assert {each.audio_finish for each in outputs} == {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.parametrize("voice", ["chelsie", "ethan", "aiden"])
async def test_answer_equals_the_reference_for_each_voice(
    client: antiphon.AsyncClient, truth: Truth, voice: str
) -> None:
    (case,) = truth.safe([replace(each, voice=voice) for each in TEXT_CASES], 1)
    check(await ask(client, case, groups=groups(truth)), truth.of(case))


async def test_voices_differ(truth: Truth) -> None:
    spoken = [
        truth.of(replace(TEXT_CASES[0], voice=voice)).codes.tobytes()
        for voice in ("chelsie", "ethan", "aiden")
    ]
    assert len(set(spoken)) == len(spoken)


async def test_four_sessions_at_once_equal_the_reference(
    client: antiphon.AsyncClient, truth: Truth
) -> None:
    cases = [*truth.safe(TEXT_CASES, 2), *truth.safe(AUDIO_CASES, 1), *truth.safe(MIXED_CASES, 1)]
    answers = await asyncio.gather(*(ask(client, case, groups=groups(truth)) for case in cases))
    for case, answer in zip(cases, answers, strict=True):
        check(answer, truth.of(case))


async def test_text_only_answer_equals_the_reference(
    client: antiphon.AsyncClient, truth: Truth
) -> None:
    for case in truth.safe([replace(each, audio=False) for each in TEXT_CASES], 3):
        answer = await ask(client, case, groups=groups(truth))
        assert answer.ids == truth.of(case).text_ids.tolist()
        assert set(answer.finished.reports) == {"thinker"}
        assert not len(answer.samples)


POLICIES = [
    None,
    ChunkPolicy(first=1, ramp=(), steady=1),
    ChunkPolicy(first=4, ramp=(), steady=25),
    ChunkPolicy(first=3, ramp=(5, 1), steady=7),
]


@pytest.mark.parametrize("policy", POLICIES)
async def test_any_chunk_policy_gives_the_same_answer(
    client: antiphon.AsyncClient, truth: Truth, policy: ChunkPolicy | None
) -> None:
    (case,) = truth.safe(TEXT_CASES, 1)
    check(await ask(client, case, groups=groups(truth), policy=policy), truth.of(case))


@pytest.mark.parametrize("delivery", [None, Delivery.WHOLE])
async def test_every_number_of_frames_equals_the_reference(
    client: antiphon.AsyncClient, truth: Truth, delivery: Delivery | None
) -> None:
    """0 to 60 frames, across every boundary of the chunk policy, eight at once.

    A greedy talker that may draw fewer ids says the beginning of the same, so one run
    of the reference is the truth for all lengths.
    """
    spoken = [case for case in FRAMES_CASES if len(truth.of(case).codes) == MOST_FRAMES]
    (case,) = truth.safe(spoken, 1)
    longest = truth.of(case)
    limited = [replace(case, talker_max_tokens=frames + 1) for frames in range(MOST_FRAMES + 1)]
    answers: list[Answer] = []
    for at in range(0, len(limited), AT_ONCE):
        asking = (
            ask(client, each, groups=groups(truth), delivery=delivery)
            for each in limited[at : at + AT_ONCE]
        )
        answers += await asyncio.gather(*asking)
    for frames, answer in enumerate(answers):
        codes = longest.codes[:frames]
        np.testing.assert_array_equal(answer.codes, codes)
        expected = decode(truth, codes)
        assert answer.samples.shape == expected.shape
        np.testing.assert_allclose(answer.samples, expected, rtol=0, atol=AUDIO_TOLERANCE)
