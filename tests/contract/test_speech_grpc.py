from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio
import soundfile
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from antiphon.client.events import text_from_proto
from antiphon.errors import (
    AntiphonError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from antiphon.v1 import chunk_pb2, options_pb2, session_pb2, speech_pb2, usage_pb2
from antiphon.values.conversation import from_tensors
from antiphon.values.logprobs import TokenLogprob
from antiphon.values.segment import FinishReason
from antiphon.wire.logprobs import logprobs_to_tensors
from antiphon.wire.status import error_from_rpc
from antiphon.wire.stubs import speech_stub
from tests.contract.fake_stages import (
    CODE2WAV,
    FRAMES,
    INPUT_RATE_HZ,
    SAMPLE_RATE_HZ,
    TALKER,
    TEXTS,
    THINKER,
    Session,
    samples_of,
    stall,
)
from tests.contract.served_gateway import MODEL, ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAMPLES = samples_of(sum(FRAMES), 0)
Part = speech_pb2.Part


def request(**fields: Any) -> speech_pb2.GenerateRequest:
    """A good request but for the given fields."""
    message = speech_pb2.Message(role="user", parts=[Part(text="Hi")])
    given: dict[str, Any] = {"messages": [message], "include_ids": True, **fields}
    return speech_pb2.GenerateRequest(**given)


@pytest_asyncio.fixture(loop_scope="session")
async def channel(served: ServedGateway) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(served.gateway.grpc_address) as channel:
        yield channel


async def events_of(channel: grpc.aio.Channel, **fields: Any) -> list[Any]:
    call = speech_stub(channel).Generate(request(**fields))
    return [event async for event in call]


async def failure_of(channel: grpc.aio.Channel, **fields: Any) -> AntiphonError:
    """The typed error that a request ends with before its first event."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await events_of(channel, **fields)
    return error_from_rpc(caught.value)


async def test_server_info_tells_what_is_served(
    served: ServedGateway, channel: grpc.aio.Channel
) -> None:
    info = await speech_stub(channel).GetServerInfo(speech_pb2.GetServerInfoRequest())
    (model,) = info.models
    assert (model.name, list(model.voices)) == (MODEL, ["chelsie", "ethan"])
    assert (model.sample_rate_hz, model.context_limit) == (SAMPLE_RATE_HZ, 4096)
    assert list(model.input_kinds) == ["text", "audio"]
    assert list(model.output_kinds) == ["text", "audio"]
    assert list(info.features) == ["generate", "converse", "resume"]
    assert info.version


async def test_generate_speaks_when_modalities_are_absent(channel: grpc.aio.Channel) -> None:
    events = await events_of(channel)
    started, *deltas, finished = events
    assert started.started.model == MODEL
    assert started.started.sample_rate_hz == SAMPLE_RATE_HZ
    texts = [event.text for event in deltas if event.HasField("text")]
    assert [text.text for text in texts] == list(TEXTS)
    assert list(texts[0].token_ids) == [0, 1, 2, 3, 4]
    audio = [event.audio for event in deltas if event.HasField("audio")]
    assert np.frombuffer(b"".join(a.float32 for a in audio), "<f4").tolist() == SAMPLES.tolist()
    pcm16 = np.frombuffer(b"".join(a.pcm16 for a in audio), "<i2")
    assert pcm16.tolist() == np.rint(SAMPLES * 32767).astype(int).tolist()
    assert [len(a.codes) // 32 for a in audio] == list(FRAMES)
    assert [a.first_sample for a in audio] == [0, 1365, 1365 + 3840]
    assert finished.finished.finish_reason == chunk_pb2.FINISH_REASON_STOP
    assert finished.finished.usage == usage_pb2.Usage(
        prompt_tokens=20,
        prompt_audio_tokens=7,
        prompt_cached_tokens=4,
        completion_tokens=5,
        completion_audio_frames=sum(FRAMES),
    )
    assert set(finished.finished.reports) == {THINKER, TALKER, CODE2WAV}
    assert finished.finished.reports[CODE2WAV].output_positions == len(SAMPLES)


async def test_generate_leaves_ids_out_unless_asked(channel: grpc.aio.Channel) -> None:
    for event in await events_of(channel, include_ids=False):
        assert not event.text.token_ids
        assert not event.audio.float32
        assert not event.audio.codes


async def test_generate_has_logprobs_when_the_thinkers_sampling_asks(
    served: ServedGateway, channel: grpc.aio.Channel
) -> None:
    others = (TokenLogprob(9, b"<|im_end|>", -0.75), TokenLogprob(8, b"", float("-inf")))
    tokens = [TokenLogprob(1, b"H", -0.25, others), TokenLogprob(2, b"\xc3", -1.5, others)]

    async def tell(session: Session) -> None:
        await session.opened()
        ids, utf8 = np.arange(3, dtype=np.int32), np.frombuffer("H\ufffd".encode(), np.uint8)
        tensors = {"ids": ids, "utf8": utf8, **logprobs_to_tensors(tokens)}
        await session.chunk("text", tensors, finish=FinishReason.STOP)
        await session.report()

    served.fakes[THINKER].script = tell
    sampling = {THINKER: session_pb2.Sampling(top_logprobs=2)}
    _, event, _ = await events_of(channel, modalities=["text"], sampling=sampling)
    assert served.fakes[THINKER].sessions[-1].segment.sampling[THINKER].top_logprobs == 2
    assert list(event.text.token_ids) == [0, 1, 2]
    assert text_from_proto(event.text).logprobs == tuple(tokens)


async def test_generate_refuses_top_logprobs_out_of_range(channel: grpc.aio.Channel) -> None:
    error = await failure_of(channel, sampling={THINKER: session_pb2.Sampling(top_logprobs=21)})
    assert isinstance(error, InvalidArgument)
    assert error.field == "sampling.thinker.top_logprobs"


async def test_generate_is_text_only_when_asked(
    served: ServedGateway, channel: grpc.aio.Channel
) -> None:
    events = await events_of(channel, modalities=["text"])
    assert events[0].started.sample_rate_hz == 0
    assert not any(event.HasField("audio") for event in events)
    assert not served.fakes[TALKER].sessions


async def test_generate_passes_settings_on(
    served: ServedGateway, channel: grpc.aio.Channel
) -> None:
    await events_of(
        channel,
        model=MODEL,
        sampling={TALKER: session_pb2.Sampling(temperature=0.0, seed=5)},
        delivery=session_pb2.DELIVERY_WHOLE,
        chunk_policy=session_pb2.ChunkPolicy(first=2, ramp=[3], steady=4),
    )
    segment = served.fakes[TALKER].sessions[0].segment
    assert segment.voice == ""
    assert segment.sampling[TALKER].seed == 5
    assert segment.sampling[TALKER].HasField("temperature")
    assert segment.sampling[THINKER].seed != 5
    assert set(segment.delivery.values()) == {session_pb2.DELIVERY_WHOLE}
    assert segment.chunk_policy.steady == 4


async def test_generate_hears_audio(served: ServedGateway, channel: grpc.aio.Channel) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.full(100, 0.25), INPUT_RATE_HZ, format="WAV", subtype="FLOAT")
    audio = Part(audio=options_pb2.AudioPart(wav=file.getvalue()))
    await events_of(channel, messages=[speech_pb2.Message(role="user", parts=[audio])])
    chunk = served.fakes[THINKER].sessions[0].input
    assert chunk is not None
    (recording,) = from_tensors(chunk.tensors).recordings
    assert recording.tolist() == [0.25] * 100


WRONG: list[tuple[dict[str, Any], type[AntiphonError], str]] = [
    ({"messages": []}, InvalidArgument, "messages"),
    ({"messages": [speech_pb2.Message(role="robot", parts=[Part(text="x")])]},
     InvalidArgument, "messages[0].role"),
    ({"messages": [speech_pb2.Message(role="user")]}, InvalidArgument, "messages[0].parts"),
    ({"messages": [speech_pb2.Message(role="user", parts=[Part()])]},
     InvalidArgument, "messages[0].parts[0]"),
    ({"messages": [speech_pb2.Message(
        role="user", parts=[Part(audio=options_pb2.AudioPart(wav=b"noise"))])]},
     InvalidArgument, "messages[0].parts[0].audio.wav"),
    ({"messages": [speech_pb2.Message(
        role="system", parts=[Part(audio=options_pb2.AudioPart(wav=b"noise"))])]},
     InvalidArgument, "messages[0].parts[0]"),
    ({"model": "other"}, NotFound, "model"),
    ({"modalities": ["song"]}, InvalidArgument, "modalities"),
    ({"modalities": ["text", "smell"]}, InvalidArgument, "modalities"),
    ({"voice": "nobody"}, InvalidArgument, "voice"),
    ({"sampling": {"thinker": session_pb2.Sampling(top_p=2)}}, InvalidArgument,
     "sampling.thinker.top_p"),
    ({"sampling": {"drummer": session_pb2.Sampling()}}, InvalidArgument, "sampling.drummer"),
    ({"delivery": 9}, InvalidArgument, "delivery"),
    ({"chunk_policy": session_pb2.ChunkPolicy(first=1)}, InvalidArgument, "chunk_policy"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "kind", "field"), WRONG, ids=lambda value: str(value)[:40])
async def test_generate_refuses_a_wrong_request_naming_the_field(
    channel: grpc.aio.Channel, fields: dict[str, Any], kind: type[AntiphonError], field: str
) -> None:
    error = await failure_of(channel, **fields)
    assert (type(error), error.field) == (kind, field)


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("too long", field="messages"),
        ResourceExhausted("no slot", retry_after_s=2.0),
        FailedPrecondition("another checkpoint"),
    ],
)
async def test_generate_has_the_status_of_what_a_stage_says(
    served: ServedGateway, channel: grpc.aio.Channel, error: AntiphonError
) -> None:
    async def refuse(session: Session) -> None:
        await session.opened()
        await session.error(error)

    served.fakes[THINKER].script = refuse
    served.fakes[TALKER].script = served.fakes[CODE2WAV].script = stall
    got = await failure_of(channel)
    assert type(got) is type(error)
    assert (got.message, got.field, got.stage) == (error.message, error.field, THINKER)
    assert got.retry_after_s == error.retry_after_s


async def test_generate_ends_with_an_error_event_when_a_stage_fails_midway(
    served: ServedGateway, channel: grpc.aio.Channel
) -> None:
    async def break_off(session: Session) -> None:
        await session.opened()
        await session.text("Hel")
        await session.error(Internal("the engine broke"))

    served.fakes[THINKER].script = break_off
    events = await events_of(channel, modalities=["text"])
    assert events[-1].error.code == session_pb2.ERROR_CODE_INTERNAL
    assert events[-1].error.stage == THINKER
    assert not any(event.HasField("finished") for event in events)


async def test_generate_frees_all_stages_when_it_is_cancelled(
    served: ServedGateway, channel: grpc.aio.Channel
) -> None:
    async def endless(session: Session) -> None:
        await session.opened()
        await session.text("begun")
        await asyncio.Event().wait()

    served.fakes[THINKER].script = endless
    call = speech_stub(channel).Generate(request())
    async for event in call:
        if event.HasField("text"):
            break
    await served.fakes.wait_begun()
    call.cancel()
    for session in served.fakes.sessions():
        await session.ended.wait()
    assert served.fakes[THINKER].sessions[0].cancelled.is_set()
    await served.gateway.calls.wait_idle()


async def test_generate_tells_the_stages_how_long_the_client_waits(
    served: ServedGateway, channel: grpc.aio.Channel
) -> None:
    call = speech_stub(channel).Generate(request(), timeout=20)
    assert [event async for event in call]
    assert 0 < served.fakes[THINKER].sessions[0].segment.deadline_s < 60


async def test_generate_carries_a_request_id(channel: grpc.aio.Channel) -> None:
    call = speech_stub(channel).Generate(request())
    metadata = dict(await call.initial_metadata())
    assert str(metadata["x-request-id"]).startswith("req_")
    assert [event async for event in call]


async def test_generate_is_unavailable_when_a_stage_is_down() -> None:
    async with serve_gateway() as served:
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        await served.fakes[TALKER].die()
        assert not await anext(ready)
        await ready.aclose()
        async with grpc.aio.insecure_channel(served.gateway.grpc_address) as channel:
            error = await failure_of(channel)
            assert (type(error), error.stage) == (Unavailable, TALKER)
            info = await speech_stub(channel).GetServerInfo(speech_pb2.GetServerInfoRequest())
            assert list(info.models[0].output_kinds) == ["text"]


async def test_generate_frees_the_stages_when_the_client_takes_nothing_for_too_long() -> None:
    async def pour(session: Session) -> None:
        await session.opened()
        while True:
            await session.text("x" * 262_144)

    async with (
        # Longer than any pause of this process, which is the client as well.
        serve_gateway(send_timeout_s=3) as served,
        grpc.aio.insecure_channel(served.gateway.grpc_address) as channel,
    ):
        served.fakes[THINKER].script = pour
        call = speech_stub(channel).Generate(request(modalities=["text"]))
        assert (await call.read()).HasField("started")
        await served.fakes[THINKER].sessions[0].ended.wait()
        await served.gateway.calls.wait_idle()
        call.cancel()


async def test_health_service_follows_the_stages() -> None:
    async with (
        serve_gateway() as served,
        grpc.aio.insecure_channel(served.gateway.grpc_address) as channel,
    ):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        service = "antiphon.v1.SpeechService"
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=service))
        statuses = aiter(watch)
        status = health_pb2.HealthCheckResponse
        while (await anext(statuses)).status != status.SERVING:
            pass
        await served.fakes[CODE2WAV].die()
        assert (await anext(statuses)).status == status.NOT_SERVING
        watch.cancel()


async def test_reflection_lists_the_services(channel: grpc.aio.Channel) -> None:
    unknown: Any = channel
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(unknown)
    call = stub.ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    await call.done_writing()
    names = {service.name for service in answer.list_services_response.service}
    assert {"antiphon.v1.SpeechService", "grpc.health.v1.Health"} <= names
