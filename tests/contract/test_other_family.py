"""A family that the gateway has never heard of: audio only, no voices, no frames beside samples."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import pytest_asyncio
import soundfile

import antiphon
from antiphon.errors import InvalidArgument
from antiphon.v1 import session_pb2, speech_pb2, speech_pb2_grpc, stage_pb2
from antiphon.values.options import Option, OptionKind
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import FinishReason
from antiphon.wire.options import option_to_proto, option_values_from_proto
from antiphon_gateway.server import Gateway
from antiphon_tools.load.options import read_options
from antiphon_tools.load.target import target_at
from antiphon_tools.load.trials import load_service
from tests.contract.fake_stages import FakeStage, FakeStages, Session
from tests.contract.served_gateway import MESSAGES, deployment_of

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
OPTIONS = {
    COMPOSER: (
        STYLE := Option("style", OptionKind.TEXT, "The dance.", choices=("waltz", "march")),
    ),
    COPYIST: (
        Option("hand", OptionKind.TEXT, max_bytes=8),
        Option("sample", OptionKind.AUDIO, sample_rate_hz=4000, max_s=1.5),
    ),
    ARRANGER: (STYLE, Option("tempo", OptionKind.NUMBER, least=0.5, most=2.0)),
    PERFORMER: (Option("sample", OptionKind.AUDIO, sample_rate_hz=8000, max_s=2.0),),
}
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
        options=map(option_to_proto, OPTIONS[role]),
        sample_rate_hz=8000 if performs else 0,
        samples_per_frame=100 if performs else 0,
        pipeline_edges=[
            stage_pb2.PipelineEdge(name=name, producer=producer, consumer=consumer)
            for name, producer, consumer in GRAPH
        ],
    )


Band = tuple[FakeStages, Gateway, httpx.AsyncClient]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def band() -> AsyncIterator[Band]:
    async with (
        FakeStages({role: FakeStage(role, work, described(role)) for role in ROLES}) as fakes,
        Gateway(deployment_of(fakes)) as gateway,
        httpx.AsyncClient(base_url=f"http://{gateway.http_address}", timeout=240) as http,
    ):
        await gateway.wait_ready()
        yield fakes, gateway, http


def recording(seconds: float = 1.0, rate_hz: int = 16_000) -> bytes:
    """A WAV file of a tone."""
    file = io.BytesIO()
    tone = 0.5 * np.sin(np.arange(round(seconds * rate_hz)) * 440 * 2 * np.pi / rate_hz)
    soundfile.write(file, tone, rate_hz, subtype="PCM_16", format="WAV")
    return file.getvalue()


def as_json(wav: bytes) -> dict[str, str]:
    return {"data": base64.b64encode(wav).decode(), "format": "wav"}


def check_options_arrived(fakes: FakeStages) -> None:
    """Each stage has got its own, and no other, in the kind that it told."""
    got = {
        role: option_values_from_proto(fakes[role].sessions[-1].segment.options) for role in ROLES
    }
    assert got[COMPOSER] == {"style": "march"}
    assert got[ARRANGER] == {"style": "march", "tempo": 1.5}
    for role, rate_hz in ((COPYIST, 4000), (PERFORMER, 8000)):
        (sample,) = got[role].values()
        assert isinstance(sample, np.ndarray)
        assert len(sample) == rate_hz
        wanted = 0.5 * np.sin(np.arange(rate_hz) * 440 * 2 * np.pi / rate_hz)
        assert np.abs(sample - wanted)[200:-200].max() < 1e-2
    common = [fakes[role].sessions[-1].segment for role in ROLES]
    for each in common:
        each.ClearField("options")
    assert all(each == common[0] for each in common)


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


async def test_both_endpoints_list_what_the_family_takes(band: Band) -> None:
    _, gateway, http = band
    listed = (await http.get("/v1/models")).json()["data"][0]
    assert (listed["outputs"], listed["voices"], listed["sampling_stages"]) == (
        ["audio"], [], [ARRANGER],
    )  # fmt: skip
    assert listed["options"] == [
        {"name": "style", "kind": "text", "description": "The dance.",
         "choices": ["waltz", "march"]},
        {"name": "hand", "kind": "text", "description": "", "max_bytes": 8},
        {"name": "sample", "kind": "audio", "description": "", "max_s": 1.5},
        {"name": "tempo", "kind": "number", "description": "", "least": 0.5, "most": 2.0},
    ]  # fmt: skip
    async with antiphon.AsyncClient(gateway.grpc_address) as client:
        (model,) = (await client.server_info()).models
    assert model.sampling_stages == (ARRANGER,)
    assert model.options[0] == antiphon.ModelOption(
        "style", "text", "The dance.", choices=("waltz", "march"), max_bytes=4096
    )
    assert [(each.name, each.kind) for each in model.options] == [
        ("style", "text"), ("hand", "text"), ("sample", "audio"), ("tempo", "number"),
    ]  # fmt: skip
    assert (model.options[2].max_s, model.options[3].most) == (1.5, 2.0)


async def test_chat_options_reach_the_stages_that_read_them(band: Band) -> None:
    options = {"style": "march", "tempo": 1.5, "sample": as_json(recording())}
    response = await chat(band[2], **AUDIO_ONLY, options=options)
    assert response.status_code == 200, response.text
    check_options_arrived(band[0])


async def test_generate_options_reach_the_stages_that_read_them(band: Band, tmp_path: Path) -> None:
    path = tmp_path / "sample.wav"
    path.write_bytes(recording())
    async with antiphon.AsyncClient(band[1].grpc_address) as client:
        for sample in (path, path.read_bytes()):
            options = {"style": "march", "tempo": 1.5, "sample": sample}
            reply = await client.generate("Hi", options=options).collect()
            assert len(reply.pcm16) == 2 * len(SAMPLES)
            check_options_arrived(band[0])


WRONG_OPTIONS: dict[str, tuple[Any, str]] = {
    "unknown": ({"key": "C"}, "available: style, hand, sample, tempo"),
    "another choice": ({"style": "polka"}, "waltz, march"),
    "too much text": ({"hand": "x" * 9}, "8 bytes"),
    "a number as text": ({"style": 5}, "must be a string"),
    "text as a number": ({"tempo": "fast"}, "0.5 to 2"),
    "too large": ({"tempo": 2.5}, "0.5 to 2"),
    "text as a recording": ({"sample": "UklGRg=="}, "a recording"),
    "a recording as text": ({"hand": b"RIFF"}, "must be a string"),
    "a recording as a number": ({"tempo": b"RIFF"}, "0.5 to 2"),
    "noise": ({"sample": b"noise"}, "is not a WAV, "),
    "nothing": ({"sample": b""}, "is empty"),
    # Of those that read it the copyist takes less.
    "too long": ({"sample": recording(1.6)}, "1.5"),
}


@pytest.mark.parametrize("name", WRONG_OPTIONS)
async def test_an_option_is_refused_by_name_at_both_endpoints(band: Band, name: str) -> None:
    options, why = WRONG_OPTIONS[name]
    fakes, gateway, http = band
    before = len(fakes[COMPOSER].sessions)
    given = {n: as_json(v) if isinstance(v, bytes) else v for n, v in options.items()}
    response = await chat(http, **AUDIO_ONLY, options=given)
    assert response.status_code == 400
    (field,) = (f"options.{each}" for each in options)
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (field, "invalid_argument")
    assert re.search(why, error["message"])
    async with antiphon.AsyncClient(gateway.grpc_address) as client:
        with pytest.raises(InvalidArgument, match=why) as caught:
            await client.generate("Hi", options=options).collect()
    assert caught.value.field == field
    assert len(fakes[COMPOSER].sessions) == before


@pytest.mark.parametrize(
    ("options", "param", "code"),
    [
        ([1], "options", "invalid_argument"),
        ({"style": None}, "options.style", "invalid_argument"),
        ({"style": True}, "options.style", "invalid_argument"),
        ({"style": ["waltz"]}, "options.style", "invalid_argument"),
        ({"sample": {"data": ""}}, "options.sample", "invalid_argument"),
        ({"sample": {"data": 5, "format": "wav"}}, "options.sample", "invalid_argument"),
        ({"sample": {"data": "no base64!", "format": "wav"}}, "options.sample", "invalid_argument"),
        ({"sample": {"data": "", "format": "aiff"}}, "options.sample", "invalid_argument"),
        ({"tempo": 10**400}, "options.tempo", "invalid_argument"),
        ({str(n): n for n in range(65)}, "options", "invalid_argument"),
    ],
)
async def test_chat_refuses_what_is_no_option(
    band: Band, options: object, param: str, code: str
) -> None:
    response = await chat(band[2], **AUDIO_ONLY, options=options)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize(
    "settings", [{"max_option_bytes": 20_000}, {"max_audio_s": 0.9}, {"max_recording_s": 0.9}]
)
async def test_options_are_bounded_by_the_gateway(band: Band, settings: dict[str, Any]) -> None:
    async with Gateway(deployment_of(band[0], **settings)) as gateway:
        await gateway.wait_ready()
        async with antiphon.AsyncClient(gateway.grpc_address) as client:
            with pytest.raises(InvalidArgument) as caught:
                await client.generate("Hi", options={"sample": recording()}).collect()
    assert caught.value.field == "options.sample"


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
        ({**AUDIO_ONLY, ARRANGER: {"top_k": -2}}, f"{ARRANGER}.top_k"),
        ({**AUDIO_ONLY, "audio": {"format": "pcm16", "voice": "ethan"}}, "audio.voice"),
    ],
)
async def test_chat_refuses_what_the_graph_has_not(
    band: Band, fields: dict[str, object], param: str
) -> None:
    response = await chat(band[2], **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_chat_ignores_a_stage_of_another_family_and_reports_it(band: Band) -> None:
    response = await chat(band[2], **AUDIO_ONLY, talker={"top_k": 3})
    assert response.status_code == 200
    assert response.headers["x-antiphon-ignored"] == "talker"


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
    model = (await band[2].get("/v1/models")).json()["data"][0]
    assert (model["outputs"], model["voices"]) == (["audio"], [])
    assert (model["sampling_stages"], model["sample_rate_hz"]) == ([ARRANGER], 8000)


@pytest.mark.parametrize("endpoint", ["http", "grpc"])
async def test_load_is_made_of_what_the_gateway_tells(band: Band, endpoint: str) -> None:
    fakes, gateway, _ = band
    address = f"http://{gateway.http_address}" if endpoint == "http" else gateway.grpc_address
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
