"""Bytes that the gateway holds for clients return to zero from every state, however it ends."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from antiphon.errors import ResourceExhausted, Unavailable
from antiphon.v1 import speech_pb2
from antiphon.wire.status import error_from_rpc
from antiphon.wire.stubs import speech_stub
from antiphon_gateway.admission.byte_budget import ByteBudget, Holder, share_bytes
from antiphon_gateway.sessions.events import TextProduced
from antiphon_testkit.gateway_settings import gateway_config
from tests.contract.failing_stages import ORDER, Failing, failing
from tests.contract.fake_stages import CODE2WAV, THINKER, Session
from tests.contract.raw_http import chat_body, post, raw_client
from tests.contract.realtime_client import realtime
from tests.contract.replicated_stages import open_replicas
from tests.contract.served_gateway import ServedGateway, serve_gateway
from tests.contract.slotted_stages import QUEUE, Gate, WaitingRequests, waiting_requests
from tests.contract.test_audio_input import tone, wav
from tests.contract.test_endpoint_bounds import SMALL_BUFFER, answer_at_length

pytestmark = pytest.mark.asyncio(loop_scope="session")

HANG_S = 120.0
SAMPLES = tone(16_000)
RECORDING = {"data": base64.b64encode(wav(SAMPLES, 16_000)).decode(), "format": "wav"}
HEARD: list[Any] = [
    {"role": "user", "content": [{"type": "input_audio", "input_audio": RECORDING}]}
]
LARGE = "x" * 300_000


class HeldBytes:
    """What a gateway's budget holds, to be waited for."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def note(self) -> None:
        """Something has changed."""
        self._changed.set()

    async def until(self, served: ServedGateway, *holders: Holder) -> None:
        """Return when these holders have bytes and the others none."""
        memory = served.gateway.calls.memory
        async with asyncio.timeout(HANG_S):
            while {each for each in Holder if memory.held(each)} != set(holders):
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldBytes:
    watch, change = HeldBytes(), ByteBudget.change

    def noted(budget: ByteBudget, holder: Holder, more: int) -> None:
        change(budget, holder, more)
        watch.note()

    monkeypatch.setattr(ByteBudget, "change", noted)
    return watch


@pytest.fixture
def waiting() -> Iterator[WaitingRequests]:
    with waiting_requests() as handler:
        yield handler


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def narrow() -> AsyncIterator[ServedGateway]:
    """A gateway that answers one request at a time."""
    async with serve_gateway(max_calls=1, **QUEUE) as served:
        yield served


@pytest.fixture
def gate(narrow: ServedGateway) -> Iterator[Gate]:
    """Through which the thinker's sessions go."""
    gate = narrow.fakes[THINKER].script = Gate(THINKER)
    yield gate
    narrow.fakes.reset()


async def test_bytes_of_a_body_go_with_its_client(held: HeldBytes, narrow: ServedGateway) -> None:
    async with raw_client(narrow) as client:
        body = chat_body(messages=HEARD, metadata={"x": LARGE})
        await client.send(post(body[: 200 << 10], length=len(body)))
        await held.until(narrow, Holder.UPLOADS)
    await held.until(narrow)


@pytest.mark.parametrize("stream", [True, False])
async def test_bytes_of_a_request_go_with_its_client(
    held: HeldBytes, narrow: ServedGateway, gate: Gate, waiting: WaitingRequests, stream: bool
) -> None:
    async with raw_client(narrow) as answered, raw_client(narrow) as queued:
        for client in (answered, queued):
            await client.send(post(chat_body(messages=HEARD, stream=stream)))
            if client is answered:
                await gate.begun.get()
        await waiting.until(1)
        await held.until(narrow, Holder.ANSWERING, Holder.WAITING)
        memory = narrow.gateway.calls.memory
        assert memory.held(Holder.WAITING) == memory.held(Holder.ANSWERING) == 4 * len(SAMPLES)
        queued.writer.transport.abort()
        await held.until(narrow, Holder.ANSWERING)
    await held.until(narrow)


async def test_bytes_of_a_request_go_with_its_end_and_its_failure(
    held: HeldBytes, narrow: ServedGateway, gate: Gate
) -> None:
    async def fail(session: Session) -> None:
        await session.error(ResourceExhausted("the prompt is too long", field="messages"))

    asking = asyncio.create_task(narrow.chat(messages=HEARD))
    await gate.begun.get()
    await held.until(narrow, Holder.ANSWERING)
    gate.let_through()
    assert (await asking).status_code == 200
    await held.until(narrow)
    narrow.fakes[THINKER].script = Gate(THINKER, fail)
    failing_gate = narrow.fakes[THINKER].script
    asking = asyncio.create_task(narrow.chat(messages=HEARD))
    await failing_gate.begun.get()
    await held.until(narrow, Holder.ANSWERING)
    failing_gate.let_through()
    assert (await asking).status_code == 429
    await held.until(narrow)


async def test_bytes_of_a_request_that_waits_too_long_go(
    held: HeldBytes, waiting: WaitingRequests
) -> None:
    async with serve_gateway(max_calls=1, **{**QUEUE, "queue_timeout_s": 1.0}) as served:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        running = asyncio.create_task(served.chat())
        await gate.begun.get()
        late = asyncio.create_task(served.chat(messages=HEARD))
        await waiting.until(1)
        await held.until(served, Holder.ANSWERING, Holder.WAITING)
        assert (await late).status_code == 429
        await held.until(served, Holder.ANSWERING)
        gate.let_through()
        assert (await running).status_code == 200
        await held.until(served)


async def test_bytes_of_a_recording_that_cannot_be_decoded_go(
    held: HeldBytes, narrow: ServedGateway
) -> None:
    broken = [
        {"type": "input_audio", "input_audio": RECORDING},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
    ]
    refused = await narrow.chat(messages=[{"role": "user", "content": broken}])
    assert refused.status_code == 400
    await held.until(narrow)


async def test_bytes_of_an_unread_answer_go_with_its_client(held: HeldBytes) -> None:
    async with serve_gateway() as served:
        served.fakes[THINKER].script = answer_at_length
        async with raw_client(served, receive_buffer=SMALL_BUFFER) as client:
            await client.send(post(chat_body()))
            await held.until(served, Holder.UNREAD)
        await held.until(served)


@pytest.mark.parametrize("state", [Holder.WAITING, Holder.ANSWERING])
async def test_bytes_of_a_grpc_request_go_when_it_is_cancelled(
    held: HeldBytes, narrow: ServedGateway, gate: Gate, state: Holder
) -> None:
    request = speech_pb2.GenerateRequest(modalities=["text"])
    request.messages.add(role="user").parts.add(text=LARGE[:1000])
    async with raw_client(narrow) as other:
        if state is Holder.WAITING:
            await other.send(post(chat_body()))
            await gate.begun.get()
        async with grpc.aio.insecure_channel(narrow.gateway.grpc_address) as channel:
            call: Any = speech_stub(channel).Generate(request)
            await held.until(narrow, *{Holder.ANSWERING, state})
            call.cancel()
        await held.until(narrow, *({Holder.ANSWERING} - {state}))
    await held.until(narrow)


async def test_a_grpc_request_that_does_not_fit_is_resource_exhausted(held: HeldBytes) -> None:
    request = speech_pb2.GenerateRequest(modalities=["text"])
    request.messages.add(role="user").parts.add(text=LARGE)
    async with (
        serve_gateway(max_memory_bytes=len(LARGE)) as served,
        grpc.aio.insecure_channel(served.gateway.grpc_address) as channel,
    ):
        call: Any = speech_stub(channel).Generate(request)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        error = error_from_rpc(refused.value)
        assert isinstance(error, ResourceExhausted)
        assert "gateway.limits.max_memory_bytes" in error.message
        assert error.retry_after_s > 0
        await held.until(served)


async def test_a_grpc_request_is_an_upload_while_it_is_parsed(held: HeldBytes) -> None:
    request = speech_pb2.GenerateRequest(modalities=["text"])
    request.messages.add(role="user").parts.add(text="Hi")
    config = gateway_config(max_memory_bytes=1 << 24)
    async with (
        serve_gateway(max_memory_bytes=config.limits.max_memory_bytes) as served,
        grpc.aio.insecure_channel(served.gateway.grpc_address) as channel,
    ):
        stub: Any = speech_stub(channel)
        share = share_bytes(config, Holder.UPLOADS)
        with served.gateway.calls.memory.lease(Holder.UPLOADS) as others:
            others.keep()
            others.take(share - request.ByteSize() + 1)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Generate(request).read()
            error = error_from_rpc(refused.value)
            assert isinstance(error, ResourceExhausted)
            assert error.message.startswith("request bodies")
            others.take(share - request.ByteSize())
            assert [each async for each in stub.Generate(request)]
        await held.until(served)


@pytest.mark.parametrize("ends", ["cancel", "disconnect", "end"])
async def test_bytes_of_a_conversation_and_of_its_answer_go(
    held: HeldBytes, narrow: ServedGateway, gate: Gate, ends: str
) -> None:
    async with realtime(narrow) as client:
        await client.end_turns_itself()
        audio = base64.b64encode(bytes(48_000)).decode()
        await client.send("input_audio_buffer.append", audio=audio)
        await client.send("input_audio_buffer.commit")
        await client.until("conversation.item.done")
        await held.until(narrow, Holder.CONVERSATIONS)
        await client.send("response.create")
        await gate.begun.get()
        await held.until(narrow, Holder.CONVERSATIONS, Holder.ANSWERING)
        # The recording itself is the conversation's; its samples are the request's.
        assert narrow.gateway.calls.memory.held(Holder.ANSWERING) == 16_000 * 4
        if ends != "disconnect":
            if ends == "cancel":
                await client.send("response.cancel")
            gate.let_through()
            await client.until("response.done")
            await held.until(narrow, Holder.CONVERSATIONS)
    await held.until(narrow)


async def test_an_answer_whose_request_gave_way_goes_on_but_not_after_a_loss(
    held: HeldBytes,
) -> None:
    for lost in (False, True):
        script = Failing(CODE2WAV) if lost else Gate(CODE2WAV)
        async with open_replicas(code2wav=2, prepare=failing(CODE2WAV, script)) as replicas:
            calls = replicas.gateway.calls
            async with asyncio.timeout(HANG_S), calls.answer(ORDER) as segment:
                await anext(segment)
                assert calls.memory.held(Holder.ANSWERING)
                with calls.memory.lease(Holder.UNREAD) as other:
                    leases = [calls.memory.lease(each) for each in Holder]
                    for lease, part in zip(leases, (0.25, 0.125, 0.0, 0.5, 0.0), strict=True):
                        lease.resize(int(part * (1 << 30)))
                    other.take(1 << 27)
                    assert not calls.memory.held(Holder.ANSWERING)
                    for lease in leases:
                        lease.close()
                if isinstance(script, Gate):
                    script.let_through()
                    assert [event async for event in segment]
                else:
                    script.now.set()
                    with pytest.raises(Unavailable, match="the engine is gone"):
                        assert [event async for event in segment]
            assert not calls.memory.held_bytes


async def test_what_the_client_has_of_an_answer_counts(held: HeldBytes) -> None:
    async def think(session: Session) -> None:
        await session.opened()
        await session.text(LARGE)

    async with serve_gateway() as served:
        served.fakes[THINKER].script = think
        async with asyncio.timeout(HANG_S), served.gateway.calls.answer(ORDER) as segment:
            async for event in segment:
                if isinstance(event, TextProduced):
                    break
            assert served.gateway.calls.memory.held(Holder.ANSWERING) >= len(LARGE)
        await held.until(served)
