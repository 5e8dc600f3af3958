"""Dynin-Omni through the real services: recorded answers, endpoints, company, failover, load."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openai
import pytest
import pytest_asyncio
import soundfile
import torch
from PIL import Image

import antiphon
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.dynin_omni import (
    IMAGE_TOKENIZER,
    PIPELINE,
    SPEECH_TOKENIZER,
    THINKER,
    UNIT2WAV,
)
from antiphon.pipelines.files import read_config
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.values.sampling import stream_key
from antiphon_services.emova.synthesizer import load_synthesizer, read_styles
from antiphon_services.magvit.image_decoder import load_image_decoder
from antiphon_services.magvit.image_sizes import image_weights
from antiphon_testkit.dynin_omni.tiny_checkpoint import IMAGE_SIDE, TURN_END
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.equality.dynin_omni.dynin_cases import (
    CASES,
    CHANGED,
    HEARD,
    IMAGE_TASKS,
    RATE_HZ,
    SHOWN,
    SPEECH_TASKS,
    SPOKEN,
    TEXT_TASKS,
    TRANSCRIBED,
    DyninCase,
    picture,
    recording,
)
from tests.equality.dynin_omni.dynin_truth import DyninTruth
from tests.equality.lost_replicas import failovers, kill_used
from tests.equality.read_aloud import check_load, services_on

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

SLOTS = 8
PRESET = "released"
BY_NAME = {case.name: case for case in CASES}
TOLERANCE = 1e-4
NEUTRAL = "gender-female_emotion-neutral_speed-normal_pitch-normal"
LONG = {THINKER: ("drawn", 240), UNIT2WAV: ("read", 240)}
"""Cases that take long, with their steps and positions, by the stage that is lost; otherwise an
image is changed."""
SAD = "gender-male_emotion-sad_speed-normal_pitch-normal"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def dynin(dynin_checkpoints: dict[str, Path]) -> AsyncIterator[Running]:
    """All services."""
    stages = dict.fromkeys(PIPELINE.roles, StageConfig(slots=SLOTS))
    async with services_on({PRESET: dynin_checkpoints[PRESET]}, stages) as running:
        yield running[PRESET]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(dynin: Running) -> AsyncIterator[antiphon.AsyncClient]:
    """The SDK's."""
    async with antiphon.AsyncClient(dynin.grpc_address) as made:
        yield made


@pytest.fixture(scope="module")
def ends(dynin_checkpoints: dict[str, Path]) -> set[int]:
    """Ids that end text."""
    content = json.loads((dynin_checkpoints[PRESET] / "tokenizer.json").read_text())
    ids = {each["content"]: each["id"] for each in content["added_tokens"]}
    return {ids[TURN_END], ids["<|endoftext|>"]}


@dataclass(slots=True)
class MadeAnswer:
    """What came through the services."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    samples: bytes = b""
    images: list[bytes] = field(default_factory=list)
    steps: list[tuple[str, int, int]] = field(default_factory=list)
    finished: antiphon.Finished | None = None

    @property
    def audio(self) -> npt.NDArray[np.float32]:
        """All samples."""
        return np.frombuffer(self.samples, "<f4")


def wav(samples: npt.NDArray[np.float32]) -> bytes:
    """A file of the samples as they are."""
    file = io.BytesIO()
    soundfile.write(file, samples, RATE_HZ, "FLOAT", format="WAV")
    return file.getvalue()


def modalities_of(case: DyninCase) -> tuple[str, ...]:
    """What is asked for."""
    if case.kind in IMAGE_TASKS:
        return ("text", "image")
    return ("text", "audio") if case.kind in SPEECH_TASKS else ("text",)


def masked_messages(case: DyninCase) -> list[antiphon.Message]:
    """The messages of a case, for the SDK."""
    parts: list[Any] = []
    if case.kind in (HEARD, TRANSCRIBED, SPOKEN):
        parts.append(wav(recording()))
    if case.kind in (SHOWN, CHANGED):
        parts.append(antiphon.Image(picture()))
    if case.text:
        parts.append(case.text)
    earlier: list[Any] = [antiphon.Message(role, (text,)) for role, text in case.turns]  # type: ignore[arg-type]
    return [*earlier, antiphon.Message.user(*parts)]


def asking(
    client: antiphon.AsyncClient, case: DyninCase, **changed: Any
) -> antiphon.AsyncGeneration:
    """The case's request."""
    wanted: dict[str, Any] = {
        "modalities": modalities_of(case),
        "temperature": case.temperature,
        "seed": case.seed,
        "max_tokens": case.sampling.max_tokens,
        "options": case.options,
        "include_ids": True,
        "timeout_s": 240,
        **changed,
    }
    given = {name: each for name, each in wanted.items() if each is not None}
    return client.generate(masked_messages(case), **given)


async def read(
    generation: antiphon.AsyncGeneration, begun: asyncio.Event | None = None
) -> MadeAnswer:
    """The whole answer; `begun` is set by its first event."""
    made = MadeAnswer()
    async for event in generation:
        if begun is not None:
            begun.set()
        match event:
            case antiphon.TextDelta():
                made.text += event.text
                made.ids += event.token_ids
            case antiphon.AudioDelta():
                made.samples += event.float32
            case antiphon.ImageDelta():
                made.images += [each.file for each in event.images]
            case antiphon.StepProgress():
                made.steps.append((event.stage, event.done, event.due))
            case antiphon.Finished():
                made.finished = event
    assert made.finished is not None
    return made


class Decoders:
    """Both decoders by themselves, which other tests compare with the vendors' code."""

    def __init__(self, checkpoint: Path) -> None:
        here: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
        folder = checkpoint / SPEECH_TOKENIZER
        weights = Weights(folder)
        self.speech, count = load_synthesizer(weights, **here)
        self.styles = read_styles(weights, read_config(folder), count)
        self.images = load_image_decoder(image_weights(checkpoint / IMAGE_TOKENIZER), **here)

    @torch.inference_mode()
    def samples(self, units: list[int], seed: int, style: str = NEUTRAL) -> npt.NDArray[np.float32]:
        """What unit2wav makes of units."""
        if not units:
            return np.empty(0, np.float32)
        key = stream_key(seed, UNIT2WAV)
        latents = self.speech.latents(np.array(units, np.uint16), self.styles[style], key)
        made: npt.NDArray[np.float32] = self.speech.samples(latents, 0, latents.frames)
        return made

    @torch.inference_mode()
    def pixels(self, tokens: list[int]) -> npt.NDArray[np.uint8]:
        """What token2image makes of tokens."""
        made: npt.NDArray[np.uint8] = self.images.pixels(np.array(tokens, np.uint16))
        return made


@pytest.fixture(scope="module")
def decoders(dynin_checkpoints: dict[str, Path]) -> Decoders:
    """Of the checkpoint."""
    return Decoders(dynin_checkpoints[PRESET])


def pixels_of(file: bytes) -> npt.NDArray[np.uint8]:
    """Of a PNG file."""
    return np.asarray(Image.open(io.BytesIO(file)))


def check_made(
    case: DyninCase, made: MadeAnswer, truth: DyninTruth, decoders: Decoders, ends: set[int]
) -> None:
    """The answer is the recorded one: ids and words, samples of its units, or its pixels."""
    stem = f"{PRESET}/{case.name}"
    wanted = truth.ids(stem, ends if case.kind in TEXT_TASKS else ())
    assert made.finished is not None
    if case.kind in TEXT_TASKS:
        assert made.ids == wanted, stem
        assert made.text == truth.words[stem], stem
        assert made.finished.usage.completion_tokens == len(wanted)
    elif case.kind in SPEECH_TASKS:
        assert not made.text
        samples = decoders.samples(wanted, case.seed)
        np.testing.assert_allclose(made.audio, samples, rtol=0, atol=TOLERANCE, err_msg=stem)
    else:
        assert not made.text
        (file,) = made.images
        assert np.array_equal(pixels_of(file), decoders.pixels(wanted)), stem
    thinker = [(done, due) for stage, done, due in made.steps if stage == THINKER]
    assert thinker, stem
    assert thinker[-1][0] == thinker[-1][1] <= case.steps


async def test_recorded_answers_come_through_all_at_once(
    client: antiphon.AsyncClient, decoders: Decoders, ends: set[int], dynin_truth: DyninTruth
) -> None:
    """More than there are slots, of all tasks."""
    made = await asyncio.gather(*(read(asking(client, case)) for case in CASES))
    for case, answer in zip(CASES, made, strict=True):
        check_made(case, answer, dynin_truth, decoders, ends)


async def test_company_changes_no_answer(client: antiphon.AsyncClient) -> None:
    case = BY_NAME["drawn"]
    alone = [await read(asking(client, case, seed=seed)) for seed in range(SLOTS)]
    together = await asyncio.gather(
        *(read(asking(client, case, seed=seed)) for seed in range(SLOTS))
    )
    assert len({tuple(each.ids) for each in alone}) == SLOTS
    assert [each.ids for each in alone] == [each.ids for each in together]


async def test_more_cancelled_answers_than_slots(
    client: antiphon.AsyncClient, decoders: Decoders, ends: set[int], dynin_truth: DyninTruth
) -> None:
    for _ in range(SLOTS + 2):
        generation = asking(client, BY_NAME["drawn-image"])
        assert isinstance(await anext(generation), antiphon.StepProgress)
        generation.cancel()
    case = BY_NAME["read"]
    check_made(case, await read(asking(client, case)), dynin_truth, decoders, ends)


async def test_style_changes_the_voice(
    client: antiphon.AsyncClient, decoders: Decoders, dynin_truth: DyninTruth
) -> None:
    case = BY_NAME["read"]
    made = await read(asking(client, case, options={**case.options, "style": SAD}))
    wanted = decoders.samples(dynin_truth.ids(f"{PRESET}/read"), case.seed, SAD)
    np.testing.assert_allclose(made.audio, wanted, rtol=0, atol=TOLERANCE)
    with pytest.raises(antiphon.InvalidArgument, match="style"):
        await read(asking(client, case, options={**case.options, "style": "merry"}))


async def test_one_conversation_has_text_speech_and_an_image(
    dynin: Running, decoders: Decoders, dynin_truth: DyninTruth
) -> None:
    """Through the unmodified OpenAI client."""
    async with openai.AsyncOpenAI(
        base_url=f"{dynin.http_url}/v1", api_key="none", timeout=240
    ) as api:
        greedy = BY_NAME["greedy"]
        asked: list[Any] = [{"role": "user", "content": greedy.text}]
        answer = await api.chat.completions.create(
            model=PRESET,
            messages=asked,
            temperature=0,
            max_completion_tokens=greedy.count,
            extra_body={"options": greedy.options},
        )
        words = answer.choices[0].message.content
        assert words == dynin_truth.words[f"{PRESET}/greedy"]
        asked += [{"role": "assistant", "content": words}, {"role": "user", "content": "and?"}]
        second = await api.chat.completions.create(
            model=PRESET, messages=asked, max_completion_tokens=16, seed=1
        )
        assert second.choices[0].message.content

        read_case = BY_NAME["read"]
        spoken = await api.chat.completions.create(
            model=PRESET,
            messages=[{"role": "user", "content": read_case.text}],
            modalities=["text", "audio"],
            audio={"format": "wav", "voice": ""},
            temperature=read_case.temperature,
            seed=read_case.seed,
            max_completion_tokens=read_case.count,
            extra_body={"options": read_case.options},
        )
        audio = spoken.choices[0].message.audio
        assert audio is not None
        samples, rate = soundfile.read(io.BytesIO(base64.b64decode(audio.data)), dtype="float32")
        wanted = decoders.samples(dynin_truth.ids(f"{PRESET}/read"), read_case.seed)
        assert (len(samples), rate) == (len(wanted), 22_050)
        np.testing.assert_allclose(samples, np.clip(wanted, -1, 1), rtol=0, atol=TOLERANCE)

        drawn = BY_NAME["drawn-image"]
        made = await api.images.generate(
            model=PRESET,
            prompt=drawn.text,
            size=f"{IMAGE_SIDE * 4}x{IMAGE_SIDE * 4}",  # type: ignore[arg-type]
            extra_body={
                "seed": drawn.seed,
                "options": {name: drawn.options[name] for name in ("steps", "guidance")},
            },
        )
        assert made.data is not None
        file = base64.b64decode(made.data[0].b64_json or "")
        tokens = dynin_truth.ids(f"{PRESET}/drawn-image")
        assert np.array_equal(pixels_of(file), decoders.pixels(tokens))

        shown = BY_NAME["shown"]
        url = "data:image/png;base64," + base64.b64encode(picture()).decode()
        seen = await api.chat.completions.create(
            model=PRESET,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": url}},
                        {"type": "text", "text": shown.text},
                    ],
                }
            ],
            temperature=0,
            max_completion_tokens=shown.count,
            extra_body={"options": shown.options},
        )
        assert seen.choices[0].message.content == dynin_truth.words[f"{PRESET}/shown"]

        speech = await api.audio.speech.create(
            model=PRESET,
            input=read_case.text,
            voice="",
            response_format="wav",
            extra_body={"seed": read_case.seed},
        )
        assert soundfile.info(io.BytesIO(speech.content)).samplerate == 22_050
        heard = await api.audio.transcriptions.create(
            model=PRESET, file=("a.wav", wav(recording())), extra_body={"max_completion_tokens": 24}
        )
        assert heard.text
        with pytest.raises(openai.BadRequestError, match=r"options\.task"):
            await api.chat.completions.create(
                model=PRESET,
                messages=asked[:1],
                modalities=["text", "audio"],
                audio={"format": "wav", "voice": ""},
            )


@pytest.mark.parametrize(
    ("service", "more"),
    [
        ("gateway", []),
        (THINKER, []),
        (UNIT2WAV, ["--frames", "25"]),
        ("token2image", ["--frames", "25"]),
    ],
)
async def test_every_service_is_loaded(
    service: str, more: list[str], dynin: Running, tmp_path: Path
) -> None:
    pace = ["--sessions", "2", *more]
    options = ["task=speech"] if service in ("gateway", THINKER) else []
    await check_load(dynin, service, options, tmp_path, http=False, pace=pace)


@pytest.mark.parametrize("role", PIPELINE.roles)
async def test_an_answer_is_the_same_when_a_stage_is_killed_in_it(
    role: str, dynin_checkpoints: dict[str, Path]
) -> None:
    """The other replica makes it again with the same key."""
    name, steps = LONG.get(role, ("changed", 36))
    case = BY_NAME[name]
    most = None if case.kind in IMAGE_TASKS else steps
    options = {**case.options, "steps": steps}
    if most is not None:
        options["block"] = steps // 4
    asked: dict[str, Any] = {"options": options, "max_tokens": most}
    stages = {each: StageConfig(slots=2, replicas=2) for each in PIPELINE.roles}
    async with (
        WarmLauncher(local_deployment(dynin_checkpoints[PRESET], **stages)) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        undisturbed = await read(asking(client, case, **asked))
        begun = asyncio.Event()
        answer = asyncio.create_task(read(asking(client, case, **asked), begun))
        await begun.wait()
        await kill_used(running, role, 2)
        made = await answer
        assert await failovers(running) >= 1
    assert (made.text, made.ids, made.images) == (
        undisturbed.text,
        undisturbed.ids,
        undisturbed.images,
    )
    np.testing.assert_allclose(made.audio, undisturbed.audio, rtol=0, atol=TOLERANCE)
    assert made.text or made.images or len(made.audio)
