"""Through the real processes, greedy fp32 output of Qwen2.5-Omni equals Hugging Face's."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
from dataclasses import replace

import httpx
import numpy as np
import numpy.typing as npt
import openai
import pytest
import soundfile

import antiphon
from antiphon import ChunkPolicy, Delivery, SamplingRequest
from antiphon_testkit.conversations import conversation
from antiphon_testkit.qwen2_5_omni.reference import Omni25Case
from antiphon_tools.launcher.launcher import Running
from tests.equality.asking import AUDIO_TOLERANCE, RATE, Answer, ask
from tests.equality.pictures import picture
from tests.equality.qwen2_5_omni.omni25_check import SAMPLES_PER_CODE, check
from tests.equality.qwen2_5_omni.omni25_truth import Omni25Truth

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

# More than the held-back blocks have, so that a stream begins before its end is known.
TALKER_MOST = 90
TEXTS = ("Tell me about water.", "Count the days", "find the number", "Ünïcödé 你好 😀", "x")
TEXT_CASES = [
    Omni25Case(conversation(("user", text)), talker_max_tokens=TALKER_MOST, seed=5)
    for text in TEXTS
]


def hum(seconds: float, pitch: float) -> npt.NDArray[np.float32]:
    noise = np.random.default_rng(int(pitch)).normal(0, 0.01, int(seconds * RATE))
    return (0.4 * np.sin(2 * np.pi * pitch * np.arange(len(noise)) / RATE) + noise).astype(
        np.float32
    )


AUDIO_CASES = [
    Omni25Case(conversation(("user", [hum(seconds, pitch), "what?"])), talker_max_tokens=30)
    for seconds, pitch in ((1.0, 200.0), (2.37, 150.0), (0.7, 500.0))
]
TURN_CASES = [
    Omni25Case(
        conversation(
            ("system", "Be brief."),
            ("user", ["Listen:", hum(0.6, pitch)]),
            ("assistant", "I hear a sound."),
            ("user", [hum(0.4, pitch), "And now?"]),
        ),
        voice="Ethan",
        talker_max_tokens=30,
    )
    for pitch in (120.0, 240.0, 360.0)
]
LONG_CASES = [
    Omni25Case(conversation(("user", f"{text} and " * 60)), talker_max_tokens=20)
    for text in TEXTS[:3]
]

SHOWN = [picture(seed, 28 * columns, 84) for seed, columns in enumerate((4, 6, 3))]
IMAGE_CASES = [
    Omni25Case(
        conversation(("user", ["Look", first.file, hum(0.5, 300.0), second.file, "What is it?"])),
        images=(first.pixels, second.pixels),
        talker_max_tokens=30,
    )
    for first, second in itertools.permutations(SHOWN, 2)
]


@pytest.mark.parametrize("delivery", [Delivery.STREAM, Delivery.WHOLE])
@pytest.mark.parametrize(
    ("candidates", "wanted"),
    [
        pytest.param(TEXT_CASES, 3, id="text"),
        pytest.param([replace(each, voice="Ethan") for each in TEXT_CASES], 1, id="voice"),
        pytest.param(AUDIO_CASES, 1, id="audio"),
        pytest.param(TURN_CASES, 1, id="turns"),
        pytest.param(LONG_CASES, 1, id="long"),
        pytest.param(IMAGE_CASES, 1, id="images"),
    ],
)
async def test_answer_equals_the_reference(
    client: antiphon.AsyncClient,
    truth: Omni25Truth,
    candidates: list[Omni25Case],
    wanted: int,
    delivery: Delivery,
) -> None:
    for case in truth.safe(candidates, wanted):
        answer = await ask(client, case, groups=1, delivery=delivery, seed=case.seed)
        check(answer, case, truth)
        if delivery is Delivery.WHOLE:
            assert answer.audio_deltas == 1
        elif len(answer.codes) > 60:
            assert answer.audio_deltas > 1


async def test_waveform_equals_that_of_the_references_own_call(
    client: antiphon.AsyncClient, truth: Omni25Truth
) -> None:
    """What `check` decodes its codes to is what the whole call gives."""
    spoken = (case for case in TEXT_CASES if len(truth.spoken(case)) == len(truth.of(case).codes))
    (case,) = truth.safe(spoken, 1)
    expected = truth.reference.run(case).waveform
    assert len(expected) == SAMPLES_PER_CODE * len(truth.spoken(case))
    answer = await ask(client, case, groups=1, delivery=Delivery.WHOLE, seed=case.seed)
    np.testing.assert_allclose(answer.samples, expected, rtol=0, atol=AUDIO_TOLERANCE)


@pytest.mark.parametrize(
    "policy", [ChunkPolicy(first=1, ramp=(), steady=1), ChunkPolicy(first=7, ramp=(5,), steady=31)]
)
async def test_any_chunk_policy_gives_the_same_answer(
    client: antiphon.AsyncClient, truth: Omni25Truth, policy: ChunkPolicy
) -> None:
    (case,) = truth.safe(TEXT_CASES, 1)
    answer = await ask(client, case, groups=1, policy=policy, seed=case.seed)
    check(answer, case, truth)


async def test_the_seed_decides_the_noise_and_nothing_else_when_greedy(
    client: antiphon.AsyncClient, truth: Omni25Truth
) -> None:
    (case,) = truth.safe(TEXT_CASES, 1)
    for seed in (0, 2**63):
        other = replace(case, seed=seed)
        check(await ask(client, other, groups=1, seed=seed), other, truth)
    unseeded = await ask(client, case, groups=1)
    assert unseeded.codes[:, 0].tolist() == truth.spoken(case)
    assert np.abs(unseeded.samples - truth.waveform(truth.spoken(case), case)).max() > 0.01


async def test_eight_sessions_of_other_seeds_are_what_each_is_alone(
    client: antiphon.AsyncClient,
) -> None:
    def asked(seed: int) -> asyncio.Task[Answer]:
        case = Omni25Case(
            conversation(("user", TEXTS[seed % 3])),
            voice=("Chelsie", "Ethan")[seed % 2],
            talker_max_tokens=20 + 9 * seed,
        )
        talker = SamplingRequest(temperature=0.9)
        return asyncio.create_task(ask(client, case, groups=1, seed=seed, talker=talker))

    alone = [await asked(seed) for seed in range(8)]
    together = await asyncio.gather(*(asked(seed) for seed in range(8)))
    for one, other in zip(alone, together, strict=True):
        assert one.ids == other.ids
        assert len(one.codes)
        np.testing.assert_array_equal(one.codes, other.codes)
        np.testing.assert_allclose(one.samples, other.samples, rtol=0, atol=AUDIO_TOLERANCE)
    assert len({each.codes.tobytes() for each in alone}) == len(alone)


async def test_text_alone_equals_the_reference_and_uses_the_thinker_alone(
    client: antiphon.AsyncClient, truth: Omni25Truth
) -> None:
    (case,) = truth.safe(TEXT_CASES, 1)
    answer = await ask(client, replace(case, audio=False), groups=1)
    assert answer.ids == truth.of(case).text_ids.tolist()
    assert set(answer.finished.reports) == {"thinker"}


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_client_hears_what_the_reference_says(
    running: Running, truth: Omni25Truth, stream: bool
) -> None:
    (case,) = truth.safe(TEXT_CASES, 1)
    (said,) = (part.text for part in case.conversation.messages[0].parts)  # type: ignore[union-attr]
    request = {
        "messages": [{"role": "user", "content": said}],
        "modalities": ["text", "audio"],
        "seed": case.seed,
        "temperature": 0,
        "max_tokens": case.thinker_max_tokens,
        "extra_body": {"talker": {"temperature": 0, "max_tokens": case.talker_max_tokens}},
    }
    form = {"voice": "CHELSIE", "format": "pcm16" if stream else "wav"}
    async with openai.AsyncOpenAI(base_url=f"{running.http_url}/v1", api_key="none") as api:
        model = (await api.models.list()).data[0]
        made = await api.chat.completions.create(
            model=model.id, audio=form, stream=stream, **request
        )
        if stream:
            deltas = [chunk.choices[0].delta async for chunk in made if chunk.choices]
            spoken = [each.audio for each in deltas if getattr(each, "audio", None)]
            transcript = "".join(each.transcript or "" for each in spoken)
            samples = np.frombuffer(
                b"".join(base64.b64decode(each.data) for each in spoken if each.data),
                "<i2",
            )
        else:
            audio = made.choices[0].message.audio
            transcript = audio.transcript
            samples, rate = soundfile.read(io.BytesIO(base64.b64decode(audio.data)), dtype="int16")
            assert rate == 24_000
    ids = truth.of(case).text_ids
    assert transcript == truth.reference.tokenizer.decode(ids, skip_special_tokens=True)
    expected = truth.waveform(truth.spoken(case), case)
    np.testing.assert_allclose(samples / 32767, expected, rtol=0, atol=1 / 32767 + AUDIO_TOLERANCE)


async def test_model_tells_its_voices_and_who_samples(
    running: Running, client: antiphon.AsyncClient
) -> None:
    (info,) = (await client.server_info()).models
    assert list(info.voices) == ["chelsie", "ethan"]
    assert set(info.output_kinds) == {"text", "audio"}
    async with httpx.AsyncClient(base_url=running.http_url, timeout=240) as http:
        card = (await http.get("/v1/models")).json()["data"][0]
        refused = await http.post(
            "/v1/chat/completions",
            json={
                "model": card["id"],
                "messages": [{"role": "user", "content": "Hello"}],
                "token2wav": {"seed": 3},
            },
        )
    # Its seed is the request's: it has no sampling of its own.
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "token2wav"
