"""Both clients against a real server: what they deliver and how they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest

import antiphon
from antiphon.client.request import DEFAULT_TIMEOUT_S
from antiphon.errors import (
    AntiphonError,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    ResourceExhausted,
    Unavailable,
)
from antiphon.v1 import chunk_pb2, speech_pb2
from antiphon.wire.convert import error_to_proto
from tests.unit.client.speech_server import (
    Answer,
    Responses,
    Speech,
    audio,
    finished,
    greeting,
    started,
    text,
)

Serve = Callable[[Answer], Speech]
Outcome = tuple[list[antiphon.Event], AntiphonError | None]
Read = Callable[..., Awaitable[Outcome]]
# What is here is about one call; `test_client_retries.py` is about several.
ONCE = antiphon.Retry(attempts=1)
GENEROUS_S = 120.0


async def read_blocking(address: str, *, cancel_after: int = -1, timeout_s: float = 30) -> Outcome:
    events: list[antiphon.Event] = []
    with antiphon.Client(address, retry=ONCE) as client:
        generation = client.generate("Hi", timeout_s=timeout_s)
        try:
            for event in generation:
                events.append(event)
                if len(events) == cancel_after:
                    generation.cancel()
        except AntiphonError as error:
            return events, error
    return events, None


async def read_async(address: str, *, cancel_after: int = -1, timeout_s: float = 30) -> Outcome:
    events: list[antiphon.Event] = []
    async with antiphon.AsyncClient(address, retry=ONCE) as client:
        generation = client.generate("Hi", timeout_s=timeout_s)
        try:
            async for event in generation:
                events.append(event)
                if len(events) == cancel_after:
                    generation.cancel()
        except AntiphonError as error:
            return events, error
    return events, None


@pytest.fixture(params=[read_blocking, read_async], ids=["blocking", "async"])
def read(request: pytest.FixtureRequest) -> Read:
    reader: Read = request.param
    return reader


async def test_client_events_arrive_in_order_when_server_streams(serve: Serve, read: Read) -> None:
    events, error = await read(serve(greeting).address)
    assert error is None
    assert events == [
        antiphon.TextDelta("Hel", (7,)),
        antiphon.AudioDelta(b"\x01\x00\x02\x00", 0),
        antiphon.TextDelta("lo", (8,)),
        antiphon.AudioDelta(b"\x03\x00\x04\x00", 2),
        antiphon.Finished(
            antiphon.FinishReason.LENGTH,
            antiphon.Usage(prompt_tokens=3, completion_tokens=2),
            {"talker": antiphon.StageReport(0, 0, 0.0, 0.0, 0.75, 0.5)},
        ),
    ]


async def test_client_has_logprobs_in_events_and_in_the_whole_reply(
    serve: Serve, read: Read
) -> None:
    end = speech_pb2.TokenLogprob(token_id=9, token=b"<|im_end|>", logprob=float("-inf"))
    told = [
        speech_pb2.TokenLogprob(token_id=1, token=b"Hel", logprob=-0.25, top=[end]),
        speech_pb2.TokenLogprob(token_id=2, token=b"\xc3", logprob=-1.5),
    ]

    def tell(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        yield started()
        yield speech_pb2.GenerateResponse(text=speech_pb2.TextDelta(text="He", logprobs=told[:1]))
        yield speech_pb2.GenerateResponse(text=speech_pb2.TextDelta(text="l"))
        yield speech_pb2.GenerateResponse(text=speech_pb2.TextDelta(text="é", logprobs=told[1:]))
        yield finished()

    server = serve(tell)
    (*deltas, _), error = await read(server.address)
    assert error is None
    never = antiphon.TokenLogprob(9, b"<|im_end|>", float("-inf"))
    expected = (
        antiphon.TokenLogprob(1, b"Hel", -0.25, (never,)),
        antiphon.TokenLogprob(2, b"\xc3", -1.5),
    )
    assert deltas == [
        antiphon.TextDelta("He", (), expected[:1]),
        antiphon.TextDelta("l"),
        antiphon.TextDelta("é", (), expected[1:]),
    ]
    assert [each.token for each in expected] == ["Hel", r"\xc3"]
    async with antiphon.AsyncClient(server.address) as client:
        reply = await client.generate("Hi", top_logprobs=1).collect()
    assert reply.logprobs == expected
    assert server.requests[-1].sampling[""].top_logprobs == 1


async def test_client_reading_raises_cancelled_when_caller_cancels(
    serve: Serve, read: Read
) -> None:
    def hang(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        yield started()
        yield text("Hel")
        server.hang.wait()

    server = serve(hang)
    events, error = await read(server.address, cancel_after=1)
    assert events == [antiphon.TextDelta("Hel")]
    assert isinstance(error, Cancelled)
    assert error.__cause__ is not None
    assert server.cancelled.wait(timeout=GENEROUS_S)


async def test_client_error_keeps_its_fields_when_server_refuses(serve: Serve, read: Read) -> None:
    def refuse(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        raise ResourceExhausted("no slot", stage="talker", retry_after_s=1.5)
        yield

    events, error = await read(serve(refuse).address)
    assert events == []
    assert isinstance(error, ResourceExhausted)
    assert (error.message, error.stage, error.retry_after_s) == ("no slot", "talker", 1.5)
    assert error.retryable
    assert isinstance(error.__cause__, grpc.RpcError)


async def test_client_error_is_typed_when_stream_carries_one(serve: Serve, read: Read) -> None:
    def fail(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        yield started()
        yield text("Hel")
        yield speech_pb2.GenerateResponse(
            error=error_to_proto(DeadlineExceeded("stalled", stage="code2wav", edge="codes"))
        )

    server = serve(fail)
    events, error = await read(server.address)
    assert events == [antiphon.TextDelta("Hel")]
    assert isinstance(error, DeadlineExceeded)
    assert (error.stage, error.edge) == ("code2wav", "codes")
    assert len(server.requests) == 1


async def test_client_does_not_retry_when_stream_breaks_after_events(
    serve: Serve, read: Read
) -> None:
    def fail(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        yield started()
        yield text("Hel")
        raise Unavailable("the talker is gone", stage="talker")

    server = serve(fail)
    events, error = await read(server.address)
    assert events == [antiphon.TextDelta("Hel")]
    assert isinstance(error, Unavailable)
    assert len(server.requests) == 1


async def test_client_raises_deadline_exceeded_when_server_is_silent(
    serve: Serve, read: Read
) -> None:
    def hang(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        yield started()
        server.hang.wait()

    _, error = await read(serve(hang).address, timeout_s=0.2)
    assert isinstance(error, DeadlineExceeded)


async def test_client_raises_unavailable_when_nothing_listens(
    deaf_address: str, read: Read
) -> None:
    events, error = await read(deaf_address)
    assert events == []
    assert isinstance(error, Unavailable)


@pytest.mark.parametrize(
    "last",
    [
        pytest.param((), id="no_end"),
        pytest.param((audio(1, b"\0\0"),), id="audio_gap"),
        pytest.param((finished(), text("more")), id="more_after_end"),
        pytest.param(
            (
                speech_pb2.GenerateResponse(
                    finished=speech_pb2.GenerateFinished(
                        finish_reason=chunk_pb2.FINISH_REASON_UNSPECIFIED
                    )
                ),
            ),
            id="no_reason",
        ),
    ],
)
async def test_client_raises_data_loss_when_stream_breaks_the_contract(
    serve: Serve, read: Read, last: tuple[speech_pb2.GenerateResponse, ...]
) -> None:
    def answer(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        yield started()
        yield text("Hel")
        yield from last

    events, error = await read(serve(answer).address)
    assert events[0] == antiphon.TextDelta("Hel")
    assert isinstance(error, DataLoss)


def test_client_collect_joins_everything_when_answer_is_whole(serve: Serve) -> None:
    with antiphon.Client(serve(greeting).address) as client:
        generation = client.generate("Hi")
        reply = generation.collect()
    assert reply.text == "Hello"
    assert reply.pcm16 == b"\x01\x00\x02\x00\x03\x00\x04\x00"
    assert reply.audio_s == 4 / 24000
    assert reply.finish_reason is antiphon.FinishReason.LENGTH
    assert (generation.session_id, generation.model) == ("s1", "tiny")


async def test_async_client_collect_equals_the_blocking_one(serve: Serve) -> None:
    server = serve(greeting)
    async with antiphon.AsyncClient(server.address) as client:
        reply = await client.generate("Hi").collect()
    with antiphon.Client(server.address) as blocking:
        assert blocking.generate("Hi").collect() == reply


def test_client_collect_refuses_when_events_were_taken(serve: Serve) -> None:
    with antiphon.Client(serve(greeting).address) as client, client.generate("Hi") as generation:
        next(generation)
        with pytest.raises(FailedPrecondition, match="already been read"):
            generation.collect()


def test_client_request_is_cancelled_when_with_block_is_left(serve: Serve) -> None:
    def hang(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        yield text("Hel")
        server.hang.wait()

    server = serve(hang)
    with antiphon.Client(server.address) as client:
        with client.generate("Hi") as generation:
            next(generation)
        assert server.cancelled.wait(timeout=GENEROUS_S)


async def test_async_client_request_is_cancelled_when_with_block_is_left(serve: Serve) -> None:
    def hang(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        yield text("Hel")
        server.hang.wait()

    server = serve(hang)
    async with antiphon.AsyncClient(server.address) as client:
        async with client.generate("Hi") as generation:
            await anext(generation)
        # The client is open still, and its channel too.
        assert await asyncio.to_thread(server.cancelled.wait, GENEROUS_S)


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("fault", ["an error event", "a gap in the audio"])
async def test_client_request_is_cancelled_when_its_stream_has_a_fault(
    serve: Serve, blocking: bool, fault: str
) -> None:
    def go_on(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        yield started()
        if fault == "an error event":
            yield speech_pb2.GenerateResponse(error=error_to_proto(Unavailable("lost")))
        else:
            yield audio(1, b"\0\0")
        server.hang.wait()

    def read_on(address: str) -> bool:
        with antiphon.Client(address) as client:
            generation = client.generate("Hi")
            with pytest.raises(AntiphonError):
                next(generation)
            return server.cancelled.wait(timeout=GENEROUS_S)

    server = serve(go_on)
    if blocking:
        assert await asyncio.to_thread(read_on, server.address)
        return
    async with antiphon.AsyncClient(server.address) as client:
        generation = client.generate("Hi")
        with pytest.raises(AntiphonError):
            await anext(generation)
        assert await asyncio.to_thread(server.cancelled.wait, GENEROUS_S)


async def test_client_server_info_is_the_same_from_both_clients(serve: Serve) -> None:
    server = serve(greeting)
    with antiphon.Client(server.address) as client:
        info = client.server_info()
    async with antiphon.AsyncClient(server.address) as async_client:
        assert await async_client.server_info() == info
    assert info == antiphon.ServerInfo(
        version="9.9",
        models=(
            antiphon.ModelInfo(
                "tiny", ("ethan",), 24000, ("text", "audio"), ("text", "audio"), 512
            ),
        ),
        features=("generate",),
    )


async def test_client_calls_carry_a_deadline_when_none_is_given(serve: Serve) -> None:
    server = serve(greeting)
    with antiphon.Client(server.address) as client:
        client.generate("Hi").collect()
    assert server.time_remaining_s is not None
    assert server.time_remaining_s < 2 * DEFAULT_TIMEOUT_S


async def test_client_refuses_calls_when_it_was_closed(serve: Serve) -> None:
    server = serve(greeting)
    client = antiphon.Client(server.address)
    client.close()
    async_client = antiphon.AsyncClient(server.address)
    await async_client.close()
    with pytest.raises(FailedPrecondition, match="closed"):
        client.generate("Hi")
    with pytest.raises(FailedPrecondition, match="closed"):
        async_client.generate("Hi")
