"""The real services as four processes: streaming, cancelling, dying, refusing, leaving."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import openai
import pytest
import pytest_asyncio

import antiphon
from antiphon import SamplingRequest
from antiphon.deployment.schema import Deployment, StageConfig
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.values.chunk import Chunk, Tensor
from antiphon.values.conversation import ConversationMessage, TextPart
from antiphon.values.segment import FinishReason
from antiphon.wire.chunks import chunk_from_proto, chunk_to_proto
from antiphon.wire.stubs import stage_stub
from antiphon_gateway.orders.order import Order
from antiphon_gateway.server import Gateway
from antiphon_gateway.sessions.events import AudioProduced, Event, SegmentFinished, TextProduced
from antiphon_testkit.cut_wire import CutWire
from antiphon_testkit.gateway_settings import gateway_config
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

ROLES = ("thinker", "talker", "code2wav")
# Of samples that were decoded in chunks of other sizes.
AUDIO_TOLERANCE = 1e-4
# The tiny checkpoint answers this with more than a hundred tokens.
LONG_ANSWER = "day one"
# The talker of the checkpoint never draws its end: 320 s of audio, where a client that does
# not read takes 30 s ahead. So a call is in its midst whenever the test says it is.
LONG_SPEECH = {"talker": SamplingRequest(temperature=0.0, max_tokens=4000)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tiny: Path) -> AsyncIterator[Running]:
    deployment = local_deployment(tiny, thinker=StageConfig(context_limit=512))
    async with WarmLauncher(deployment) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def talking(talkative: Path) -> AsyncIterator[Running]:
    async with WarmLauncher(local_deployment(talkative)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(running: Running) -> AsyncIterator[antiphon.AsyncClient]:
    async with antiphon.AsyncClient(running.grpc_address) as client:
        yield client


async def describe(running: Running, role: str) -> stage_pb2.DescribeResponse:
    address = running.processes[role].address
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        return await stage_stub(channel).Describe(stage_pb2.DescribeRequest())


async def assert_all_free(running: Running, roles: tuple[str, ...] = ROLES) -> None:
    """Every stage is without sessions soon; it is told by a message, not by this call."""
    for role in roles:
        for _ in range(1000):
            told = await describe(running, role)
            if not told.open_sessions:
                break
            await asyncio.sleep(0.01)
        assert (told.open_sessions, told.open_segments) == (0, 0), role


async def test_audio_leaves_while_the_reply_is_still_open(running: Running) -> None:
    """Talker and code2wav speak from the first tokens: the test itself is the thinker."""
    prompt = await _prompt_ids(running)
    talker = running.processes["talker"].address
    vocoder = running.processes["code2wav"].address
    async with (
        grpc.aio.insecure_channel(talker, options=CHANNEL_OPTIONS) as to_talker,
        grpc.aio.insecure_channel(vocoder, options=CHANNEL_OPTIONS) as to_vocoder,
    ):
        speech, audio = stage_stub(to_talker).RunSession(), stage_stub(to_vocoder).RunSession()
        for call, edge, target in (
            (speech, "codes", session_pb2.Destination(stage=_stage(vocoder))),
            (audio, "audio", session_pb2.Destination(reply=session_pb2.ReplyTarget())),
        ):
            route = session_pb2.Route(edge=edge, destinations=[target])
            opening = session_pb2.SessionOpen(session_id="early", routes=[route])
            sampling = {"talker": session_pb2.Sampling(temperature=0)}
            turn = session_pb2.SegmentOpen(outputs=["audio"], sampling=sampling)
            await call.write(session_pb2.SessionRequest(open=opening))
            await call.write(session_pb2.SessionRequest(segment_open=turn))
        ends = {"segment_finished": True, "finish_reason": FinishReason.STOP}
        await _send(speech, Chunk("early", "prompt", tensors={"ids": prompt}, **ends))
        await _send(speech, Chunk("early", "tokens", tensors={"ids": prompt[:3]}))
        first = await _next_chunk(audio)
        assert len(first.tensors["samples"])
        assert not first.segment_finished
        await _send(speech, Chunk("early", "tokens", sequence=1, position=3, **ends))
        while not (await _next_chunk(audio)).segment_finished:
            pass
        speech.cancel()
        audio.cancel()
    await assert_all_free(running)


async def test_text_only_never_touches_talker_and_code2wav(
    running: Running, client: antiphon.AsyncClient
) -> None:
    reply = await client.generate("Hello", modalities=("text",), max_tokens=8).collect()
    assert reply.text
    assert set(reply.reports) == {"thinker"}


async def test_all_of_64_requests_at_once_are_answered_by_16_slots(running: Running) -> None:
    async with openai.AsyncOpenAI(base_url=f"{running.http_url}/v1", api_key="none") as api:
        asked: dict[str, Any] = {
            "model": (await api.models.list()).data[0].id,
            "messages": [{"role": "user", "content": "Hi"}],
            "modalities": ["text", "audio"],
            "audio": {"voice": "ethan", "format": "wav"},
            "max_tokens": 6,
            "extra_body": {"talker": {"max_tokens": 6}},
        }
        asking = [api.chat.completions.create(**asked) for _ in range(64)]
        assert all(each.choices[0].message.audio for each in await asyncio.gather(*asking))
    await assert_all_free(running)
    async with httpx.AsyncClient(base_url=running.http_url) as http:
        samples = (await http.get("/metrics")).text
    assert 'antiphon_gateway_wait_seconds_count{urgency="audio"} 64.0' in samples
    assert "antiphon_gateway_not_admitted_total{" not in samples


async def test_audio_alone_is_what_comes_with_the_text(client: antiphon.AsyncClient) -> None:
    options = {
        "max_tokens": 12,
        "sampling": {"talker": SamplingRequest(temperature=0.0, max_tokens=20)},
    }
    both = await client.generate("Hello", **options).collect()
    alone = await client.generate("Hello", modalities=("audio",), **options).collect()
    assert both.text
    assert alone.text == ""
    spoken = [np.frombuffer(each.pcm16, "<i2") / 32767.0 for each in (alone, both)]
    np.testing.assert_allclose(*spoken, rtol=0, atol=AUDIO_TOLERANCE)
    assert spoken[0].size
    assert alone.usage.completion_tokens == both.usage.completion_tokens
    assert alone.usage.completion_audio_frames == both.usage.completion_audio_frames


@asynccontextmanager
async def own_gateway(
    running: Running, wires: Mapping[str, CutWire] | None = None, **settings: Any
) -> AsyncIterator[Gateway]:
    """A gateway of the test's own on the real stages, for calls that no endpoint makes."""
    stages = {
        role: StageConfig(addresses=(wires[role].address if wires else each.address,))
        for role, each in running.processes.items()
        if role in ROLES
    }
    listen = {"http_listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0"}
    config = gateway_config(**listen, **settings)
    async with Gateway(Deployment(stages=stages, gateway=config)) as gateway:
        await gateway.wait_ready()
        yield gateway


def order(text: str, max_tokens: int = 16) -> Order:
    greedy = SamplingRequest(temperature=0.0, max_tokens=max_tokens)
    message = ConversationMessage("user", (TextPart(text),))
    return Order(messages=(message,), sampling={"": greedy, "talker": greedy})


async def test_segments_in_a_row_on_one_session_are_like_one_each(running: Running) -> None:
    async with own_gateway(running) as gateway:
        alone = []
        for text in ("Hello", LONG_ANSWER):
            async with gateway.calls.answer(order(text)) as segment:
                alone.append(_outcome([event async for event in segment]))
        calls = gateway.calls
        async with calls.session(await calls.prepare(order(LONG_ANSWER))) as session:
            for last, text in enumerate(("Hello", LONG_ANSWER)):
                segment = await session.ask(await calls.prepare(order(text)), last=bool(last))
                words, frames, samples = _outcome([event async for event in segment])
                assert words == alone[last][0]
                np.testing.assert_array_equal(frames, alone[last][1])
                np.testing.assert_allclose(samples, alone[last][2], rtol=0, atol=AUDIO_TOLERANCE)
    await assert_all_free(running)


async def test_turn_after_cancelled_ones_is_like_a_fresh_sessions(talking: Running) -> None:
    async with own_gateway(talking) as gateway:
        async with gateway.calls.answer(order(LONG_ANSWER)) as segment:
            fresh = _outcome([event async for event in segment])
        calls = gateway.calls
        async with calls.session(await calls.prepare(order(LONG_ANSWER))) as session:
            # From before the first event to the midst of the speech, which is far from its end
            # however many tokens and frames come in one event.
            for events in (0, 1, 2, 3, 5, 8, 13, 21, 34):
                prepared = await calls.prepare(order(LONG_ANSWER, 800))
                segment = await session.ask(prepared, last=False)
                for _ in range(events):
                    await anext(segment)
                segment.cancel()
                rest = [event async for event in segment]
                assert not any(isinstance(e, TextProduced | AudioProduced) for e in rest)
                assert isinstance(rest[-1], SegmentFinished)
                assert rest[-1].finish_reason is FinishReason.CANCELLED
                for role in ROLES:
                    assert (await describe(talking, role)).open_segments == 0
                if events == 34:
                    made = {r: rest[-1].reports[r].output_positions for r in ROLES}
                    assert all(made.values()), made
                    assert rest[-1].usage.prompt_tokens
            segment = await session.ask(await calls.prepare(order(LONG_ANSWER)), last=True)
            words, frames, samples = _outcome([event async for event in segment])
        assert words == fresh[0]
        np.testing.assert_array_equal(frames, fresh[1])
        np.testing.assert_allclose(samples, fresh[2], rtol=0, atol=AUDIO_TOLERANCE)
    await assert_all_free(talking)


@pytest.mark.parametrize("role", ROLES)
async def test_answer_continues_without_a_failover_when_its_connection_is_cut(
    talking: Running, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    wires = {each: CutWire(talking.processes[each].address) for each in ROLES}
    for wire in wires.values():
        await wire.open()
    try:
        # An answer that has to be carried on elsewhere would fail.
        async with own_gateway(talking, wires, failovers=0) as gateway:
            outcomes = []
            for cuts in ((), (1, 2, 4, 8)):
                events: list[Event] = []
                async with gateway.calls.answer(order(LONG_ANSWER, 200)) as segment:
                    async for event in segment:
                        events.append(event)
                        if len(events) in cuts:
                            wires[role].cut()
                outcomes.append(_outcome(events))
                assert ("sessions of the stage" in caplog.text) == bool(cuts)
        whole, cut = outcomes
        assert cut[0] == whole[0]
        np.testing.assert_array_equal(cut[1], whole[1])
        np.testing.assert_allclose(cut[2], whole[2], rtol=0, atol=AUDIO_TOLERANCE)
        await assert_all_free(talking)
    finally:
        for wire in wires.values():
            await wire.close()


def _outcome(events: list[Event]) -> tuple[str, Tensor, Tensor]:
    """The text, the codec frames and the samples of a segment."""
    text = "".join(event.text for event in events if isinstance(event, TextProduced))
    spoken = [event for event in events if isinstance(event, AudioProduced)]
    frames, samples = ([getattr(each, name) for each in spoken] for name in ("frames", "samples"))
    return text, np.concatenate(frames), np.concatenate(samples)


async def test_stop_string_ends_text_and_speech_before_it(client: antiphon.AsyncClient) -> None:
    options = {
        "max_tokens": 60,
        "sampling": {"talker": SamplingRequest(temperature=0.0, max_tokens=200)},
    }
    whole = await client.generate(LONG_ANSWER, **options).collect()
    stop = whole.text[40:44]
    cut = await client.generate(LONG_ANSWER, stop=[stop], **options).collect()
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason is FinishReason.STOP
    assert cut.usage.completion_tokens < whole.usage.completion_tokens
    assert cut.pcm16 != whole.pcm16


async def test_cancel_at_any_moment_frees_every_stage(talking: Running) -> None:
    async with antiphon.AsyncClient(talking.grpc_address) as client:
        for events in (0, 1, 3, 10, 40):
            generation = client.generate(LONG_ANSWER, max_tokens=200, sampling=LONG_SPEECH)
            for _ in range(events):
                await anext(generation)
            generation.cancel()
            with pytest.raises(antiphon.AntiphonError):
                _ = [event async for event in generation]
            await assert_all_free(talking)


async def test_http_client_that_goes_away_frees_every_stage(talking: Running) -> None:
    body = {
        "model": (await describe(talking, "thinker")).model,
        "messages": [{"role": "user", "content": LONG_ANSWER}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "ethan", "format": "pcm16"},
        "talker": {"temperature": 0, "max_tokens": 4000},
        "stream": True,
    }
    async with (
        httpx.AsyncClient(base_url=talking.http_url, timeout=240) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if '"data"' in line:
                break
    await assert_all_free(talking)


async def test_prompt_over_the_context_limit_is_refused_with_the_limit(
    running: Running, client: antiphon.AsyncClient
) -> None:
    with pytest.raises(antiphon.AntiphonError, match="512") as caught:
        await client.generate("word " * 2000).collect()
    assert caught.value.code.value == "invalid_argument"
    async with httpx.AsyncClient(base_url=running.http_url, timeout=240) as http:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "word " * 2000}]}
        response = await http.post("/v1/chat/completions", json={**body, "stream": True})
    assert response.status_code == 400
    assert "512" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_client_gets_text_and_audio(running: Running, stream: bool) -> None:
    async with openai.AsyncOpenAI(base_url=f"{running.http_url}/v1", api_key="none") as api:
        model = (await api.models.list()).data[0]
        request = {
            "model": model.id,
            "messages": [{"role": "user", "content": "What is the weather like?"}],
            "modalities": ["text", "audio"],
            "extra_body": {"talker": {"temperature": 0, "max_tokens": 30}},
        }
        if stream:
            audio = {"voice": "ethan", "format": "pcm16"}
            chunks = await api.chat.completions.create(audio=audio, stream=True, **request)
            deltas = [chunk.choices[0].delta async for chunk in chunks if chunk.choices]
            spoken = [delta.audio for delta in deltas if getattr(delta, "audio", None)]
            assert any(each.data for each in spoken)
            assert any(each.transcript for each in spoken)
        else:
            audio = {"voice": "ethan", "format": "wav"}
            answer = await api.chat.completions.create(audio=audio, **request)
            assert answer.choices[0].message.audio.transcript
            assert answer.choices[0].message.audio.data


async def test_killed_stage_gives_a_typed_error_and_others_go_on(talkative: Path) -> None:
    async with (
        WarmLauncher(local_deployment(talkative)) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        speaking = client.generate(LONG_ANSWER, max_tokens=200, sampling=LONG_SPEECH)
        async for event in speaking:
            if isinstance(event, antiphon.AudioDelta):
                break
        writing = client.generate(LONG_ANSWER, modalities=("text",), max_tokens=200)
        await anext(writing)
        os.kill(running.processes["talker"].pid, signal.SIGKILL)
        with pytest.raises(antiphon.AntiphonError) as caught:
            async for _ in speaking:
                pass
        assert caught.value.code.value == "unavailable"
        assert caught.value.stage == "talker"
        ends = [event async for event in writing if isinstance(event, antiphon.Finished)]
        assert len(ends) == 1
        await assert_all_free(running, ("thinker", "code2wav"))
        with pytest.raises(antiphon.AntiphonError, match="talker") as refused:
            await client.generate("Hello").collect()
        assert refused.value.code.value == "unavailable"
        assert (await client.generate("Hello", modalities=("text",)).collect()).text
        async with httpx.AsyncClient(base_url=running.http_url) as http:
            health = await http.get("/health")
        assert health.status_code == 503
        assert "talker" in health.text


def _stage(address: str) -> session_pb2.StageTarget:
    return session_pb2.StageTarget(address=address)


async def _prompt_ids(running: Running) -> np.ndarray:
    """The ids that the thinker makes of a question."""
    address = running.processes["thinker"].address
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        call = stage_stub(channel).RunSession()
        reply = session_pb2.Destination(reply=session_pb2.ReplyTarget())
        route = session_pb2.Route(edge="prompt", destinations=[reply])
        opening = session_pb2.SessionOpen(session_id="ids", routes=[route])
        await call.write(session_pb2.SessionRequest(open=opening))
        turn = session_pb2.SegmentOpen(sampling={"thinker": session_pb2.Sampling(max_tokens=1)})
        await call.write(session_pb2.SessionRequest(segment_open=turn))
        messages = b'[{"role":"user","parts":[{"type":"text","text":"Hello"}]}]'
        tensors = {"messages": np.frombuffer(messages, np.uint8)}
        await _send(call, Chunk("ids", "input", tensors=tensors))
        finish = session_pb2.InputFinished(segment=0)
        await call.write(session_pb2.SessionRequest(input_finished=finish))
        ids: np.ndarray = (await _next_chunk(call)).tensors["ids"]
        call.cancel()
        return ids


async def _send(
    call: grpc.aio.StreamStreamCall[session_pb2.SessionRequest, session_pb2.SessionResponse],
    chunk: Chunk,
) -> None:
    await call.write(session_pb2.SessionRequest(chunk=chunk_to_proto(chunk)))


async def _next_chunk(
    call: grpc.aio.StreamStreamCall[session_pb2.SessionRequest, session_pb2.SessionResponse],
) -> Chunk:
    """The next chunk; an error or the end of the stream fails the test."""
    while True:
        response = await call.read()
        assert isinstance(response, session_pb2.SessionResponse), "the stream has ended"
        assert not response.HasField("error"), response.error
        if response.HasField("chunk"):
            return chunk_from_proto(response.chunk)
