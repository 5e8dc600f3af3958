"""MiMo-Audio through the real services answers what the vendor's code answers.

Ids and codes are identical however the answer is delivered and whoever shares the engines. Audio
that is delivered whole equals the vendor's. Streamed audio has as many samples, which are the same
for every chunk policy: see `test_mimo_windows.py` for how near it is to the other.
"""

from __future__ import annotations

import asyncio

import numpy as np
import numpy.typing as npt
import pytest

import antiphon
from antiphon import Delivery
from antiphon_testkit.mimo_audio.tiny_checkpoint import EMPTY
from tests.equality.mimo_audio.mimo_asking import Answer, ask, speaks
from tests.equality.mimo_audio.mimo_cases import AUDIO_STEP, CASES, SAMPLES_PER_FRAME
from tests.equality.mimo_audio.mimo_lab import MimoLab, Recorded, recorded_names
from tests.equality.read_aloud import POLICIES, SLOTS, Speakers

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

BY_NAME = {case.name: case for case in CASES}
TOLERANCE = 1e-4


def names_of(preset: str) -> list[str]:
    """The cases that are recorded on a checkpoint, but for those with a recording of an earlier
    answer, which the gateway takes of nobody."""
    names = [each.partition("/")[2] for each in recorded_names() if each.startswith(f"{preset}/")]
    return [name for name in names if not (speaks(BY_NAME[name]) and BY_NAME[name].earlier)]


def spoken_codes(recorded: Recorded, stem: str, group_id: int) -> npt.NDArray[np.uint16]:
    """The frames of a case that are heard: of all groups but one at the last position."""
    ids = recorded.arrays[f"{stem}/text"]
    codes = recorded.arrays[f"{stem}/codes"].reshape(len(ids), 4, -1)
    return codes[:-1][ids[:-1] == group_id].reshape(-1, codes.shape[-1])


def check(answer: Answer, stem: str, recorded: Recorded, group_id: int, *, whole: bool) -> None:
    """The answer is what is recorded."""
    case = BY_NAME[stem.partition("/")[2]]
    assert answer.ids == recorded.arrays[f"{stem}/text"].tolist(), stem
    assert answer.finished.usage.completion_tokens == len(answer.ids)
    if not speaks(case):
        assert not len(answer.samples)
        return
    np.testing.assert_array_equal(answer.codes, spoken_codes(recorded, stem, group_id), stem)
    assert len(answer.samples) == SAMPLES_PER_FRAME * len(answer.codes)
    if whole:
        assert len(answer.samples) == recorded.rows[stem]["samples"]
        audio = recorded.arrays[f"{stem}/audio"]
        np.testing.assert_allclose(
            answer.samples[::AUDIO_STEP], audio, rtol=0, atol=TOLERANCE, err_msg=stem
        )


@pytest.mark.parametrize("policy", POLICIES)
async def test_every_case_is_answered_as_recorded_in_company(
    policy: str, preset: str, speakers: Speakers, recorded: Recorded, lab_ids: dict[str, int]
) -> None:
    client, how = speakers[preset], POLICIES[policy]
    room = asyncio.Semaphore(SLOTS)

    async def one(name: str) -> Answer:
        async with room:
            return await ask(client, BY_NAME[name], **how)

    names = names_of(preset)
    answers = await asyncio.gather(*map(one, names))
    whole = how.get("delivery") is Delivery.WHOLE
    for name, answer in zip(names, answers, strict=True):
        check(answer, f"{preset}/{name}", recorded, lab_ids[EMPTY], whole=whole)


async def test_eight_sessions_with_different_seeds_answer_what_each_answers_alone(
    speakers: Speakers,
) -> None:
    case = BY_NAME["tts-english"]

    async def draw(seed: int) -> Answer:
        options = {"task": "speech"}
        return await ask(speakers["marks"], case, temperature=1.0, seed=seed, options=options)

    alone = [await draw(seed) for seed in range(SLOTS)]
    together = await asyncio.gather(*map(draw, range(SLOTS)))
    for one, other in zip(alone, together, strict=True):
        assert one.ids == other.ids
        np.testing.assert_array_equal(one.codes, other.codes)
        np.testing.assert_allclose(one.samples, other.samples, rtol=0, atol=TOLERANCE)
    assert len({tuple(each.ids) for each in alone}) > SLOTS // 2


async def test_cancelled_sessions_give_their_slots_back(
    speakers: Speakers, recorded: Recorded, mimo_labs: dict[str, MimoLab]
) -> None:
    client, case = speakers["marks"], BY_NAME["tts-english"]
    for seed in range(SLOTS + 2):
        generation = client.generate(
            case.text,
            modalities=("text", "audio"),
            seed=seed,
            temperature=1.0,
            options={"task": "speech"},
        )
        assert isinstance(await anext(generation), antiphon.TextDelta | antiphon.AudioDelta)
        generation.cancel()
    answer = await ask(client, case, delivery=Delivery.WHOLE)
    group_id = mimo_labs["marks"].ids[EMPTY]
    check(answer, f"marks/{case.name}", recorded, group_id, whole=True)


@pytest.mark.parametrize("text", ["a", "1", "你", "!"])
async def test_one_character_is_answered_and_spoken(text: str, speakers: Speakers) -> None:
    """With text alone there is no audio; with both each frame has its samples."""
    client = speakers["widths"]
    for options in ({}, {"task": "speech"}):
        both = await client.generate(
            text, modalities=("text", "audio"), options=options, seed=1, max_tokens=30
        ).collect()
        assert len(both.pcm16) % (2 * SAMPLES_PER_FRAME) == 0
        assert both.usage.completion_audio_frames * 2 * SAMPLES_PER_FRAME == len(both.pcm16)
    written = await client.generate(text, modalities=("text",), seed=1, max_tokens=30).collect()
    assert not written.pcm16
    assert written.usage.completion_tokens <= 30


async def test_log_probabilities_are_those_of_the_text(
    speakers: Speakers, recorded: Recorded
) -> None:
    """Of a greedy answer each id is the likeliest; groups of frames have no entry."""
    case = BY_NAME["text-english"]
    generation = speakers["marks"].generate(
        case.text,
        modalities=("text",),
        temperature=0.0,
        max_tokens=case.most,
        top_logprobs=3,
        include_ids=True,
        options={"code_temperature": 0.0},
    )
    text, ids, entries = "", list[int](), list[antiphon.TokenLogprob]()
    async for event in generation:
        if isinstance(event, antiphon.TextDelta):
            text += event.text
            ids += event.token_ids
            entries += event.logprobs
    assert ids == recorded.arrays[f"marks/{case.name}/text"].tolist()
    assert b"".join(each.token_bytes for each in entries).decode(errors="replace") == text
    for each in entries:
        assert each.logprob <= 0
        assert [each.logprob] == [max(other.logprob for other in each.top)]
        assert len(each.top) == 3


async def test_the_server_tells_what_the_model_takes(speakers: Speakers) -> None:
    for client in speakers.values():
        (info,) = (await client.server_info()).models
        assert set(info.output_kinds) == {"text", "audio"}
        assert set(info.input_kinds) == {"text", "audio"}
        assert (info.sample_rate_hz, info.voices) == (24_000, ())
        assert {each.name for each in info.options} >= {"task", "instruction", "reference_audio"}
