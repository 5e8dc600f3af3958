"""A family that the gateway has never heard of: audio only, no voices, no frames beside samples."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import pytest_asyncio
from fake_stages import FakeStage, FakeStages, Session
from gateway_door import MESSAGES, deployment_of

import antiphon
from antiphon.errors import InvalidArgument
from antiphon.sampling import SamplingRequest
from antiphon.segment import FinishReason
from antiphon.v1 import session_pb2, speech_pb2, speech_pb2_grpc, stage_pb2
from gateway.server import Gateway
from tools.load.options import read_options
from tools.load.target import target_at
from tools.load.trials import load_service

pytestmark = pytest.mark.asyncio(loop_scope="session")

COMPOSER, COPYIST, ARRANGER, PERFORMER = "composer", "copyist", "arranger", "performer"
ROLES = (COMPOSER, COPYIST, ARRANGER, PERFORMER)
SAMPLING = (COMPOSER, ARRANGER)
GRAPH = (
    ("question", "", COMPOSER),
    ("melody", COMPOSER, COPYIST),
    ("parts", COPYIST, ARRANGER),
    ("score", ARRANGER, PERFORMER),
    ("audio", PERFORMER, ""),
)
SAMPLES = np.linspace(-1, 1, 300, dtype=np.float32)
AUDIO_ONLY = {"modalities": ["audio"], "audio": {"format": "pcm16"}}


async def work(session: Session) -> None:
    await session.opened()
    if session.role == PERFORMER:
        await session.chunk("audio", {"samples": SAMPLES}, finish=FinishReason.STOP)
    await session.report(output_positions=7)


def described(role: str) -> stage_pb2.DescribeResponse:
    performs = role == PERFORMER
    return stage_pb2.DescribeResponse(
        model="band",
        pipeline="band",
        role=role,
        input_kinds=["text"],
        samples=role in SAMPLING,
        sample_rate_hz=8000 if performs else 0,
        samples_per_frame=100 if performs else 0,
        pipeline_edges=[
            stage_pb2.PipelineEdge(name=name, producer=producer, consumer=consumer)
            for name, producer, consumer in GRAPH
        ],
    )


Band = tuple[FakeStages, Gateway, httpx.AsyncClient]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def band() -> AsyncIterator[Band]:
    async with (
        FakeStages({role: FakeStage(role, work, described(role)) for role in ROLES}) as fakes,
        Gateway(deployment_of(fakes)) as gateway,
        httpx.AsyncClient(base_url=f"http://{gateway.http_address}", timeout=30) as http,
    ):
        await gateway.wait_ready()
        yield fakes, gateway, http


async def chat(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    body = {"model": "band", "messages": MESSAGES, **fields}
    return await http.post("/v1/chat/completions", json=body)


async def test_chat_is_answered_with_audio_alone_by_a_family_that_makes_no_text(band: Band) -> None:
    fakes, _, http = band
    response = await chat(http, **AUDIO_ONLY, temperature=0.5, arranger={"top_k": 3})
    assert response.status_code == 200, response.text
    message = response.json()["choices"][0]["message"]
    pcm16 = np.frombuffer(base64.b64decode(message["audio"]["data"]), "<i2")
    np.testing.assert_array_equal(pcm16, np.rint(SAMPLES * 32767))
    details = response.json()["usage"]["completion_tokens_details"]
    assert (details["audio_tokens"], details["text_tokens"]) == (3, 0)
    segment = fakes[PERFORMER].sessions[-1].segment
    assert (segment.voice, list(segment.outputs)) == ("", ["audio"])
    assert segment.sampling[ARRANGER].top_k == 3
    assert segment.sampling[COMPOSER].temperature == 0.5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "modalities"),
        ({"modalities": ["text"]}, "modalities"),
        # The stage that reads the input has the request's own fields.
        ({**AUDIO_ONLY, COMPOSER: {"top_k": 3}}, COMPOSER),
        # It feeds another stage, and does not sample.
        ({**AUDIO_ONLY, COPYIST: {"top_k": 3}}, COPYIST),
        ({**AUDIO_ONLY, PERFORMER: {"top_k": 3}}, PERFORMER),
        ({**AUDIO_ONLY, "talker": {"top_k": 3}}, "talker"),
        ({**AUDIO_ONLY, ARRANGER: {"top_k": -1}}, f"{ARRANGER}.top_k"),
        ({**AUDIO_ONLY, "audio": {"format": "pcm16", "voice": "ethan"}}, "audio.voice"),
    ],
)
async def test_chat_refuses_what_the_graph_has_not(
    band: Band, fields: dict[str, object], param: str
) -> None:
    response = await chat(band[2], **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({COPYIST: SamplingRequest(top_k=3)}, "sampling.copyist"),
        ({PERFORMER: SamplingRequest(seed=1)}, "sampling.performer"),
        ({COMPOSER: SamplingRequest(top_k=3)}, "sampling.composer"),
    ],
)
async def test_generate_refuses_sampling_of_a_stage_that_does_not_sample(
    band: Band, sampling: dict[str, SamplingRequest], field: str
) -> None:
    async with antiphon.AsyncClient(band[1].grpc_address) as client:
        with pytest.raises(InvalidArgument) as caught:
            await client.generate("Hi", temperature=0.5, sampling=sampling).collect()
    assert caught.value.field == field


async def test_generate_is_answered_with_all_that_the_family_makes(band: Band) -> None:
    fakes, gateway, _ = band
    async with grpc.aio.insecure_channel(gateway.grpc_address) as channel:
        stub: Any = speech_pb2_grpc.SpeechServiceStub(channel)
        (model,) = (await stub.GetServerInfo(speech_pb2.GetServerInfoRequest())).models
        assert (list(model.output_kinds), list(model.voices)) == (["audio"], [])
        assert (model.sample_rate_hz, list(model.sampling_stages)) == (8000, [ARRANGER])
        part = speech_pb2.Part(text="Hi")
        request = speech_pb2.GenerateRequest(
            messages=[speech_pb2.Message(role="user", parts=[part])],
            sampling={ARRANGER: session_pb2.Sampling(top_k=4)},
        )
        kinds = [event.WhichOneof("event") async for event in stub.Generate(request)]
    assert kinds == ["started", "audio", "finished"]
    assert fakes[ARRANGER].sessions[-1].segment.sampling[ARRANGER].top_k == 4


async def test_models_tell_the_outputs_the_stages_that_sample_and_the_rate(band: Band) -> None:
    (model,) = (await band[2].get("/v1/models")).json()["data"]
    assert (model["outputs"], model["voices"]) == (["audio"], [])
    assert (model["sampling_stages"], model["sample_rate_hz"]) == ([ARRANGER], 8000)


@pytest.mark.parametrize("door", ["http", "grpc"])
async def test_load_is_made_of_what_the_gateway_tells(band: Band, door: str) -> None:
    fakes, gateway, _ = band
    address = f"http://{gateway.http_address}" if door == "http" else gateway.grpc_address
    arguments = ("--sessions", "1", "--seconds", "0.1", "--warm-up", "0", "--frames", "20")
    options = read_options(["gateway", "--target", address, *arguments])
    result = await load_service(options, target_at("gateway", address), io.StringIO())
    assert (result.errors, result.metrics["ttft"]) == ({}, None)
    requests = result.requests.succeeded
    assert result.audio_s_per_s * result.measured_s == pytest.approx(requests * 300 / 8000)
    assert [each.metric for each in result.objectives] == ["ttfa", "underrun"]
    segment = fakes[ARRANGER].sessions[-1].segment
    limits = {role: each.max_tokens for role, each in segment.sampling.items() if each.max_tokens}
    # The reader makes no text and others sample: how long it may go on is its own matter.
    assert limits == {ARRANGER: 21}
