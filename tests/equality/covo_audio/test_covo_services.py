"""Covo-Audio through the real services: recorded answers, company, endpoints, load, failover."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import soundfile

import antiphon
from antiphon import Delivery
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.covo_audio import PIPELINE, THINKER
from antiphon.pipelines.files import read_config
from antiphon.values.conversation import AudioPart, TextPart
from antiphon_testkit.covo_audio.tiny_checkpoint import PRESETS
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.equality.covo_audio.covo_asking import conversation_of
from tests.equality.covo_audio.covo_cases import CASES, RATE_HZ, Case, clips
from tests.equality.covo_audio.covo_truth import CovoTruth
from tests.equality.lost_replicas import kill_used
from tests.equality.read_aloud import Speakers, check_load, clients_of, services_on

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

SLOTS = 8
CONTEXT = 1200
BY_NAME = {case.name: case for case in CASES}
SAMPLES_PER_CODE, LATENT_SAMPLES = 960, 240
PRESET = "released"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def covo_services(covo_checkpoints: dict[str, Path]) -> AsyncIterator[dict[str, Running]]:
    """All services on each checkpoint."""
    stages = dict.fromkeys(PIPELINE.roles, StageConfig(slots=SLOTS))
    stages[THINKER] = StageConfig(slots=SLOTS, context_limit=CONTEXT)
    async with services_on(covo_checkpoints, stages) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def covo_clients(covo_services: dict[str, Running]) -> AsyncIterator[Speakers]:
    """A client of each."""
    async with clients_of(covo_services) as clients:
        yield clients


@dataclass(frozen=True, slots=True)
class SpokenAnswer:
    """What came through the services."""

    text: str
    ids: list[int]
    codes: npt.NDArray[np.uint16]
    samples: npt.NDArray[np.float32]
    finished: antiphon.Finished


def wav(samples: npt.NDArray[np.float32]) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE_HZ, "FLOAT", format="WAV")
    return file.getvalue()


def messages_of(case: Case) -> list[antiphon.Message]:
    said = conversation_of(case)
    return [
        antiphon.Message(
            message.role,
            tuple(
                wav(said.recordings[part.index]) if isinstance(part, AudioPart) else part.text
                for part in message.parts
                if isinstance(part, AudioPart | TextPart)
            ),
        )
        for message in said.messages
    ]


def asking(client: antiphon.AsyncClient, case: Case, **changed: Any) -> antiphon.AsyncGeneration:
    wanted: dict[str, Any] = {
        "modalities": ("text", "audio") if case.spoken else ("text",),
        "temperature": 0.0,
        "seed": 7,
        "max_tokens": case.most,
        "include_ids": True,
        "timeout_s": 240,
        **changed,
    }
    return client.generate(messages_of(case), **wanted)


async def heard(generation: antiphon.AsyncGeneration) -> SpokenAnswer:
    text, ids, codes, samples = "", list[int](), b"", b""
    finished = None
    async for event in generation:
        match event:
            case antiphon.TextDelta():
                text += event.text
                ids += event.token_ids
            case antiphon.AudioDelta():
                codes += event.codes
                samples += event.float32
            case antiphon.Finished():
                finished = event
    assert finished is not None
    frames = np.frombuffer(codes, "<u2")
    return SpokenAnswer(text, ids, frames, np.frombuffer(samples, "<f4"), finished)


@pytest.mark.parametrize("delivery", [None, Delivery.WHOLE], ids=["default", "whole"])
async def test_recorded_answers_come_through_all_at_once(
    delivery: Delivery | None,
    preset: str,
    covo_clients: Speakers,
    covo_checkpoints: dict[str, Path],
    covo_truth: CovoTruth,
) -> None:
    first = int(read_config(covo_checkpoints[preset])["audio_token_index"])
    client = covo_clients[preset]
    cases = [case for case in CASES if case.name != "long"]
    made = await asyncio.gather(*(heard(asking(client, case, delivery=delivery)) for case in cases))
    for case, answer in zip(cases, made, strict=True):
        stem = f"{preset}/{case.name}"
        wanted = covo_truth.arrays[f"{stem}/ids"]
        assert answer.ids == wanted.tolist(), stem
        assert answer.text == covo_truth.rows[stem]["words"], stem
        if case.spoken:
            codes = wanted[wanted >= first] - first
            assert answer.codes.tolist() == codes.tolist(), stem
            missing = LATENT_SAMPLES * PRESETS[preset].surplus_latents
            length = SAMPLES_PER_CODE * len(codes) - missing if len(codes) else 0
            assert len(answer.samples) == length, stem
        else:
            assert not len(answer.samples)


async def test_company_changes_neither_draws_nor_audio(covo_clients: Speakers) -> None:
    case, client = BY_NAME["noise"], covo_clients[PRESET]
    drawn = [{"temperature": 1.0, "seed": seed} for seed in range(SLOTS)]
    alone = [await heard(asking(client, case, **each)) for each in drawn]
    together = await asyncio.gather(*(heard(asking(client, case, **each)) for each in drawn))
    assert len({tuple(each.ids) for each in alone}) == SLOTS
    for one, other in zip(alone, together, strict=True):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.samples, other.samples, rtol=0, atol=1e-4)


async def test_more_cancelled_answers_than_slots(covo_clients: Speakers) -> None:
    client, case = covo_clients[PRESET], BY_NAME["odd"]
    for _ in range(SLOTS + 2):
        generation = asking(client, case)
        assert isinstance(await anext(generation), antiphon.TextDelta)
        generation.cancel()
    answer = await heard(asking(client, case))
    assert len(answer.samples)


async def test_chat_speaks(covo_services: dict[str, Running], covo_truth: CovoTruth) -> None:
    case = BY_NAME["short"]
    sound = base64.b64encode(wav(clips()["short"])).decode()
    part = {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}
    body = {
        "model": PRESET,
        "messages": [{"role": "user", "content": [part]}],
        "modalities": ["text", "audio"],
        "audio": {"format": "wav"},
        "temperature": 0,
        "max_completion_tokens": case.most,
    }
    async with httpx.AsyncClient(base_url=covo_services[PRESET].http_url, timeout=240) as http:
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        audio = answer.json()["choices"][0]["message"]["audio"]
        row = covo_truth.rows[f"{PRESET}/short"]
        assert audio["transcript"] == row["words"]
        samples, rate = soundfile.read(io.BytesIO(base64.b64decode(audio["data"])))
        missing = LATENT_SAMPLES * PRESETS[PRESET].surplus_latents
        assert (len(samples), rate) == (SAMPLES_PER_CODE * row["codes"] - missing, RATE_HZ)
        answered = {"role": "assistant", "content": [part]}
        refused = await http.post(
            "/v1/chat/completions",
            json=body | {"messages": [*body["messages"], answered, *body["messages"]]},
        )
        assert refused.status_code == 400, refused.text


@pytest.mark.parametrize("service", ["gateway", *PIPELINE.roles])
async def test_every_service_is_loaded(
    service: str, covo_services: dict[str, Running], tmp_path: Path
) -> None:
    pace = ["--sessions", "2"]
    await check_load(covo_services[PRESET], service, [], tmp_path, http=False, pace=pace)


@pytest.mark.parametrize("role", PIPELINE.roles)
async def test_an_answer_is_the_same_when_a_stage_is_killed_in_it(
    role: str, covo_checkpoints: dict[str, Path]
) -> None:
    """Another thinker goes on from the ids that the client has; another code2wav gets all codes."""
    case, drawn = BY_NAME["noise"], {"temperature": 1.0, "seed": 4, "max_tokens": 150}
    stages = {
        each: StageConfig(slots=2, replicas=2, context_limit=CONTEXT) for each in PIPELINE.roles
    }
    async with (
        WarmLauncher(local_deployment(covo_checkpoints[PRESET], **stages)) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        undisturbed = await heard(asking(client, case, **drawn))
        assert len(undisturbed.samples)
        ids, samples, killed = list[int](), b"", False
        async for event in asking(client, case, **drawn):
            match event:
                case antiphon.TextDelta():
                    ids += event.token_ids
                    if not killed:
                        killed = True
                        await kill_used(running, role, 2)
                case antiphon.AudioDelta():
                    samples += event.float32
    assert killed
    assert ids == undisturbed.ids
    made = np.frombuffer(samples, "<f4")
    np.testing.assert_allclose(made, undisturbed.samples, rtol=0, atol=1e-4)


async def turn_of(call: antiphon.AsyncConversationCall, name: str) -> tuple[str, int]:
    """The text of the answer to a recording, and its number of samples."""
    text, count = "", 0
    await call.send_audio(pcm16(name), RATE_HZ)
    await call.commit_audio()
    await call.respond()
    async with asyncio.timeout(240):
        async for event in call:
            assert not isinstance(event, antiphon.CommandFailed), event
            match event:
                case antiphon.ResponseTextDelta():
                    text += event.text
                case antiphon.ResponseAudioDelta():
                    count += len(event.pcm16) // 2
                case antiphon.ResponseDone():
                    assert event.response.error is None, event.response.error
                    return text, count
    raise AssertionError("the response never ended")


def pcm16(name: str) -> bytes:
    return (clips()[name] * 32767).astype("<i2").tobytes()


def quantized(name: str) -> bytes:
    return wav(np.frombuffer(pcm16(name), "<i2").astype(np.float32) / 32768)


async def test_a_second_turn_is_a_longer_prompt(covo_clients: Speakers) -> None:
    client = covo_clients["wrapped"]
    sampling = {"": antiphon.SamplingRequest(temperature=0.0, max_tokens=40, seed=5)}
    async with client.converse(sampling=sampling) as call:
        first, samples = await turn_of(call, "short")
        second, more = await turn_of(call, "odd")
    assert all((first, samples, second, more))
    messages = [
        antiphon.Message("user", (quantized("short"),)),
        antiphon.Message("assistant", (first,)),
        antiphon.Message("user", (quantized("odd"),)),
    ]
    both = {"modalities": ("text", "audio"), "temperature": 0.0, "max_tokens": 40, "seed": 5}
    longer = await heard(client.generate(messages, include_ids=True, timeout_s=240, **both))
    assert longer.text == second
    assert len(longer.samples) == more
    alone = await heard(client.generate(messages[2:], include_ids=True, timeout_s=240, **both))
    assert alone.text != second
