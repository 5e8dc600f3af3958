"""Ming-flash-omni through the real services: the thinker's text is recorded, and the audio is what
the talker alone says for this text."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import soundfile

import antiphon
from antiphon import Delivery
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.ming_flash_omni import CODE2WAV, PIPELINE, TALKER, THINKER
from antiphon.pipelines.ming_tts import FRAME_SAMPLES, FRAME_WIDTH, SAMPLE_RATE_HZ
from antiphon_testkit.gateway_settings import with_settings
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Launcher, Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.equality.lost_replicas import failovers, used
from tests.equality.ming_flash_omni.flash_asking import png
from tests.equality.ming_flash_omni.flash_cases import (
    AUDIO,
    CASES,
    RATE_HZ,
    TEXT,
    Case,
    images,
    recordings,
)
from tests.equality.ming_flash_omni.flash_truth import FlashTruth
from tests.equality.read_aloud import check_load
from tests.unit.services.ming_tts.ming_talker_lab import Asked, Floats, TalkerLab, latents_of
from tests.unit.services.ming_tts.test_ming_utterances import by_size, say

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

SLOTS, CONTEXT, SEED, REPLICAS = 4, 1024, 7, 2
LONG, LEAST_LONG = 160, 100
"""So many ids take the thinker about a second."""
AHEAD_S = 0.5
"""So little may be made ahead of the client that speech cannot end before the client reads."""
PRESET = "released"
BY_NAME = {case.name: case for case in CASES}
SPOKEN = ("hello", "second", "heard-odd", "seen-again", "one")
"""Cases whose answers are also spoken. Each takes the talker a few seconds."""
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class SpokenAnswer:
    """What came through the services."""

    text: str
    ids: list[int]
    latents: Floats
    samples: npt.NDArray[np.float32]


def stages(replicas: int = 1) -> dict[str, StageConfig]:
    """The settings of all stages."""
    made = {role: StageConfig(slots=SLOTS, replicas=replicas) for role in PIPELINE.roles}
    limited = StageConfig(slots=SLOTS, replicas=replicas, context_limit=CONTEXT)
    return made | {THINKER: limited, TALKER: limited}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def flash_services(flash_checkpoints: dict[str, Path]) -> AsyncIterator[Running]:
    """All services on one checkpoint."""
    # The stages are started from scratch, so that a missing import is noticed.
    async with Launcher(local_deployment(flash_checkpoints[PRESET], **stages())) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def flash_client(flash_services: Running) -> AsyncIterator[antiphon.AsyncClient]:
    """A client of them."""
    async with antiphon.AsyncClient(flash_services.grpc_address) as client:
        yield client


def wav(samples: npt.NDArray[np.float32]) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE_HZ, "FLOAT", format="WAV")
    return file.getvalue()


def parts_of(case: Case) -> list[antiphon.Message]:
    heard, seen = recordings(), images()
    messages = [antiphon.Message("system", (case.system,))] if case.system else []
    for turn in case.turns:
        parts: list[Any] = []
        for kind, name in turn.parts:
            if kind == TEXT:
                parts.append(name)
            elif kind == AUDIO:
                parts.append(wav(heard[name]))
            else:
                parts.append(antiphon.Image(png(seen[name]).tobytes()))
        messages.append(antiphon.Message("user", tuple(parts)))
        if turn.answer:
            messages.append(antiphon.Message("assistant", (turn.answer,)))
    return messages


def asking(client: antiphon.AsyncClient, case: Case, **changed: Any) -> antiphon.AsyncGeneration:
    wanted: dict[str, Any] = {
        "modalities": ("text", "audio"),
        "temperature": 0.0,
        "seed": SEED,
        "max_tokens": case.most,
        "include_ids": True,
        "timeout_s": 240,
        **changed,
    }
    return client.generate(parts_of(case), **wanted)


async def answered(generation: antiphon.AsyncGeneration) -> SpokenAnswer:
    text, ids, latents, samples = "", list[int](), b"", b""
    async for event in generation:
        match event:
            case antiphon.TextDelta():
                text += event.text
                ids += event.token_ids
            case antiphon.AudioDelta():
                latents += event.latents
                samples += event.float32
    frames = np.frombuffer(latents, "<f4").reshape(-1, FRAME_WIDTH)
    return SpokenAnswer(text, ids, frames, np.frombuffer(samples, "<f4"))


Speak = Callable[[Asked], Floats]


@pytest.fixture(scope="module")
def said_alone(flash_checkpoints: dict[str, Path]) -> Speak:
    """The latents of a text that arrives in pieces, which the talker speaks by sentences.

    This is the talker of the same checkpoint, as `ming_tts` serves it.
    """
    lab = TalkerLab(flash_checkpoints[PRESET], limit=CONTEXT)
    known: dict[str, Floats] = {}

    def speak(asked: Asked) -> Floats:
        if repr(asked) not in known:
            known[repr(asked)] = latents_of(say(lab, (asked, by_size(asked.text, 10)))[0])
        return known[repr(asked)]

    return speak


@pytest.mark.parametrize("delivery", [None, Delivery.WHOLE], ids=["default", "whole"])
async def test_answers_are_recorded_text_in_the_voice_of_the_talker_alone(
    delivery: Delivery | None,
    flash_client: antiphon.AsyncClient,
    flash_truth: FlashTruth,
    said_alone: Speak,
) -> None:
    cases = [BY_NAME[name] for name in SPOKEN]
    made = await asyncio.gather(
        *(answered(asking(flash_client, case, delivery=delivery)) for case in cases)
    )
    for case, answer in zip(cases, made, strict=True):
        stem = f"{PRESET}/{case.name}"
        assert answer.ids == flash_truth.arrays[f"{stem}/ids"].tolist(), stem
        assert answer.text == flash_truth.rows[stem]["words"], stem
        expected = said_alone(Asked(answer.text, seed=SEED))
        np.testing.assert_allclose(answer.latents, expected, rtol=0, atol=TOLERANCE, err_msg=stem)
        assert len(answer.samples) == FRAME_SAMPLES * len(expected), stem


async def test_text_alone_needs_no_talker(
    flash_client: antiphon.AsyncClient, flash_truth: FlashTruth
) -> None:
    cases = [case for case in CASES if case.name not in SPOKEN]
    asked = (answered(asking(flash_client, case, modalities=("text",))) for case in cases)
    for case, answer in zip(cases, await asyncio.gather(*asked), strict=True):
        assert answer.ids == flash_truth.arrays[f"{PRESET}/{case.name}/ids"].tolist(), case.name
        assert not len(answer.samples)


async def test_a_voice_and_a_style_reach_the_talker(
    flash_client: antiphon.AsyncClient, said_alone: Speak
) -> None:
    options = {"emotion": "高兴"}
    asked = asking(flash_client, BY_NAME["hello"], voice="DB30", options=options)
    answer = await answered(asked)
    alone = Asked(answer.text, seed=SEED, voice="DB30", options=dict(options))
    expected = said_alone(alone)
    np.testing.assert_allclose(answer.latents, expected, rtol=0, atol=TOLERANCE)


async def test_chat_hears_sees_and_speaks(flash_services: Running, flash_truth: FlashTruth) -> None:
    case = BY_NAME["all"]
    sound = base64.b64encode(wav(recordings()["short"])).decode()
    picture = base64.b64encode(png(images()["wide"]).tobytes()).decode()
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        {"type": "text", "text": "what is it?"},
    ]
    body: dict[str, Any] = {
        "model": PRESET,
        "messages": [{"role": "user", "content": content}],
        "modalities": ["text", "audio"],
        "audio": {"format": "wav", "voice": "db30"},
        "temperature": 0,
        "max_completion_tokens": case.most,
    }
    async with httpx.AsyncClient(base_url=flash_services.http_url, timeout=240) as http:
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        audio = answer.json()["choices"][0]["message"]["audio"]
        assert audio["transcript"] == flash_truth.rows[f"{PRESET}/all"]["words"]
        samples, rate = soundfile.read(io.BytesIO(base64.b64decode(audio["data"])))
        assert rate == SAMPLE_RATE_HZ
        assert len(samples) % FRAME_SAMPLES == 0
        assert len(samples)
        tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
        for refused, field in (
            ({"tools": [tool]}, "tools"),
            ({"messages": [*body["messages"], {"role": "assistant", "content": content}]}, "mess"),
            ({"audio": {"format": "wav", "voice": "nobody"}}, "audio.voice"),
        ):
            answer = await http.post("/v1/chat/completions", json=body | refused)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"].startswith(field), answer.text


@pytest.mark.parametrize("service", ["gateway", *PIPELINE.roles])
async def test_every_service_is_loaded(
    service: str, flash_services: Running, tmp_path: Path
) -> None:
    await check_load(flash_services, service, [], tmp_path)


@pytest.mark.timeout(600)
async def test_an_answer_is_the_same_when_stages_are_killed_in_it(
    flash_checkpoints: dict[str, Path],
) -> None:
    """Another thinker goes on from the client's ids, and another talker from its latents."""
    case = BY_NAME["chinese"]
    deployment = local_deployment(flash_checkpoints[PRESET], **stages(REPLICAS))
    ahead = {"max_ahead_seconds": AHEAD_S, "max_stage_ahead_seconds": AHEAD_S}
    gateway = with_settings(deployment.gateway, **ahead)
    deployment = msgspec.structs.replace(deployment, gateway=gateway)
    async with (
        WarmLauncher(deployment) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        for role in (THINKER, TALKER, CODE2WAV):
            # Nothing holds the thinker back, so its answer is too long to be complete when the
            # first piece of it has come.
            most = LONG if role == THINKER else case.most
            undisturbed = await answered(asking(client, case, max_tokens=most))
            assert len(undisturbed.ids) >= (LEAST_LONG if role == THINKER else most)
            assert len(undisturbed.samples)
            before = await failovers(running)
            finding = asyncio.create_task(used(running, role, REPLICAS))
            first = antiphon.TextDelta if role == THINKER else antiphon.AudioDelta
            ids, samples, killed = list[int](), b"", False
            async for event in asking(client, case, max_tokens=most):
                if isinstance(event, first) and not killed:
                    killed = True
                    running.processes[await finding].kill()
                match event:
                    case antiphon.TextDelta():
                        ids += event.token_ids
                    case antiphon.AudioDelta():
                        samples += event.float32
            assert killed
            assert await failovers(running) > before, role
            assert ids == undisturbed.ids, role
            made = np.frombuffer(samples, "<f4")
            np.testing.assert_allclose(
                made, undisturbed.samples, rtol=0, atol=TOLERANCE, err_msg=role
            )
