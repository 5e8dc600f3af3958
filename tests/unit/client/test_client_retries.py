"""When both clients make a call again, when they do not, and how long they wait for anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from speech_server import Responses, Speech, greeting, started, text
from twins import ask_async, ask_blocking, info_async, info_blocking

import antiphon
from antiphon.client.connection import CHANNEL_OPTIONS
from antiphon.client.retrying import Attempts
from antiphon.errors import (
    AntiphonError,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from antiphon.v1 import speech_pb2

Serve = Callable[..., Speech]
Ask = Callable[..., Awaitable[antiphon.Reply]]
SOON = antiphon.Retry(pause_s=0.01)
both = pytest.mark.parametrize("ask", [ask_blocking, ask_async], ids=["blocking", "async"])


def failing(times: int, error: AntiphonError, *before: speech_pb2.GenerateResponse) -> Any:
    """Fails so often, after some messages, and answers then."""

    def answer(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        if len(server.requests) > times:
            yield from greeting(request, server)
            return
        yield from before
        raise error

    return answer


@both
async def test_client_retries_when_nothing_has_come_yet(serve: Serve, ask: Ask) -> None:
    server = serve(failing(2, ResourceExhausted("no slot", retry_after_s=0.01)))
    assert (await ask(server.address, retry=SOON)).text == "Hello"
    assert len(server.requests) == 3


@both
@pytest.mark.parametrize(
    ("error", "before"),
    [
        pytest.param(Unavailable("gone"), (started(),), id="after_the_start"),
        pytest.param(Unavailable("gone"), (started(), text("Hel")), id="after_text"),
        pytest.param(InvalidArgument("wrong"), (), id="not_retryable"),
    ],
)
async def test_client_does_not_retry_when_it_may_not(
    serve: Serve, ask: Ask, error: AntiphonError, before: tuple[Any, ...]
) -> None:
    server = serve(failing(9, error, *before))
    with pytest.raises(type(error)):
        await ask(server.address, retry=SOON)
    assert len(server.requests) == 1


@both
async def test_client_gives_up_when_all_attempts_failed(serve: Serve, ask: Ask) -> None:
    server = serve(failing(9, Unavailable("gone", stage="talker")))
    with pytest.raises(Unavailable) as failed:
        await ask(server.address, retry=SOON)
    assert (failed.value.stage, failed.value.retryable) == ("talker", True)
    assert failed.value.__cause__ is not None
    assert len(server.requests) == 3


@both
async def test_client_does_not_wait_when_the_server_says_too_late(serve: Serve, ask: Ask) -> None:
    server = serve(failing(9, ResourceExhausted("no slot", retry_after_s=3600)))
    with pytest.raises(ResourceExhausted) as failed:
        await ask(server.address)
    assert failed.value.retry_after_s == 3600
    assert len(server.requests) == 1


@pytest.mark.parametrize("ask", [info_blocking, info_async], ids=["blocking", "async"])
async def test_client_server_info_is_asked_again_when_nothing_listens(
    deaf_address: str, ask: Callable[..., Awaitable[antiphon.ServerInfo]]
) -> None:
    with pytest.raises(Unavailable):
        await ask(deaf_address, retry=antiphon.Retry(attempts=2, pause_s=0.01))


async def test_client_cancel_ends_the_pause_before_a_retry(serve: Serve) -> None:
    server = serve(failing(9, ResourceExhausted("no slot", retry_after_s=500)))
    patient = antiphon.Retry(within_s=1000)

    def blocking() -> None:
        with antiphon.Client(server.address, retry=patient) as client:
            generation = client.generate("Hi", timeout_s=1000)
            # It was refused once, and whenever it reads, it waits.
            assert server.cancelled.wait(timeout=30)
            generation.cancel()
            with pytest.raises(Cancelled):
                next(generation)

    await asyncio.to_thread(blocking)
    server.cancelled.clear()
    async with antiphon.AsyncClient(server.address, retry=patient) as client:
        reading = asyncio.ensure_future(anext(client.generate("Hi", timeout_s=1000)))
        assert await asyncio.to_thread(server.cancelled.wait, 30)
        closing = asyncio.create_task(client.close())
        with pytest.raises(AntiphonError):
            await reading
        await closing
    assert len(server.requests) == 2


async def test_client_ends_a_silent_stream_when_its_reader_waits_too_long(serve: Serve) -> None:
    def hang(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        yield started()
        yield text("Hel")
        server.hang.wait()

    def blocking(server: Speech) -> None:
        with antiphon.Client(server.address) as client:
            generation = client.generate("Hi", idle_timeout_s=0.5)
            assert next(generation) == antiphon.TextDelta("Hel")
            with pytest.raises(DeadlineExceeded, match="idle_timeout_s"):
                next(generation)
            assert server.cancelled.wait(timeout=30)

    await asyncio.to_thread(blocking, serve(hang))
    server = serve(hang)
    async with antiphon.AsyncClient(server.address) as client:
        generation = client.generate("Hi", idle_timeout_s=0.5)
        assert await anext(generation) == antiphon.TextDelta("Hel")
        with pytest.raises(DeadlineExceeded, match="idle_timeout_s"):
            await anext(generation)
        assert await asyncio.to_thread(server.cancelled.wait, 30)


async def test_client_idle_timeout_does_not_run_while_nobody_reads(serve: Serve) -> None:
    def answer(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        yield text("a")
        server.hang.wait(timeout=30)
        yield from greeting(request, server)

    server = serve(answer)
    with antiphon.Client(server.address) as client:
        watched = client.generate("Hi", idle_timeout_s=0.2)
        next(watched)
        # Another call's reader waits for longer than the first may, and is given up.
        with pytest.raises(DeadlineExceeded):
            list(client.generate("Hi", idle_timeout_s=0.6))
        server.hang.set()
        assert sum(isinstance(event, antiphon.Finished) for event in watched) == 1


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_attempts_pauses_double_up_to_the_longest_and_dice_take_half() -> None:
    retry = antiphon.Retry(attempts=6, within_s=100, pause_s=1, longest_pause_s=4)
    error = Unavailable("gone")
    attempts = Attempts(retry, 1000, Clock(), lambda: 0.0)
    assert [attempts.pause_after(error) for _ in range(6)] == [1, 2, 4, 4, 4, None]
    halved = Attempts(retry, 1000, Clock(), lambda: 1.0)
    assert halved.pause_after(error) == 0.5
    told = Attempts(retry, 1000, Clock(), lambda: 1.0)
    assert told.pause_after(ResourceExhausted("full", retry_after_s=7)) == 7.5


def test_attempts_end_before_their_bounds_in_time() -> None:
    clock = Clock()
    attempts = Attempts(antiphon.Retry(within_s=10, pause_s=1), 100, clock, lambda: 0.0)
    clock.now_s = 9.5
    assert attempts.pause_after(Unavailable("gone")) is None
    clock = Clock()
    short = Attempts(antiphon.Retry(within_s=10, pause_s=1), 5, clock, lambda: 0.0)
    clock.now_s = 3
    assert short.left_s == 2
    assert short.pause_after(ResourceExhausted("full", retry_after_s=2)) is None
    clock.now_s = 9
    assert short.left_s == 0


def test_attempts_are_one_when_the_error_is_not_retryable() -> None:
    attempts = Attempts(antiphon.Retry(), 100, Clock(), lambda: 0.0)
    assert attempts.pause_after(DataLoss("lost")) is None


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"attempts": 0}, "retry.attempts"),
        ({"attempts": 10**6}, "retry.attempts"),
        ({"within_s": -1}, "retry.within_s"),
        ({"pause_s": float("nan")}, "retry.pause_s"),
        ({"longest_pause_s": "1"}, "retry.longest_pause_s"),
    ],
)
def test_retry_refuses_values_out_of_range(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        antiphon.Retry(**given)
    assert refused.value.field == field


def test_a_gateway_that_is_back_is_found_by_the_last_try() -> None:
    """A channel looks for a lost server after pauses of its own, and answers nothing before."""
    retry, options = antiphon.Retry(), dict(CHANNEL_OPTIONS)
    away = Unavailable("away")
    pauses = [retry.pause_after(away, tried, 1.0) or 0.0 for tried in range(1, retry.attempts)]
    longest_ms, most_by_chance = options["grpc.max_reconnect_backoff_ms"], 1.2
    assert isinstance(longest_ms, int)
    assert longest_ms * most_by_chance < 1000 * sum(pauses)
