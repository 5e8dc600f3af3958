"""When both clients make a call again, when they do not, and how long they wait for anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

import antiphon
from antiphon.client.connection import CHANNEL_OPTIONS, Contact
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
from tests.own_records import records_of
from tests.unit.client.speech_server import Responses, Speech, greeting, started, text
from tests.unit.client.twins import (
    ask_async,
    ask_blocking,
    info_async,
    info_blocking,
    talk_async,
    talk_blocking,
)

Serve = Callable[..., Speech]
Ask = Callable[..., Awaitable[antiphon.Reply]]
SOON = antiphon.Retry(pause_s=0.01, longest_pause_s=0.05)
GENEROUS_S = 120.0
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


@both
async def test_a_stage_that_is_down_costs_attempts_and_a_gateway_that_is_away_does_not(
    serve: Serve, ask: Ask
) -> None:
    failures = [
        *(Unavailable("the gateway is shutting down") for _ in range(5)),
        Unavailable("down", stage="talker"),
        Unavailable("the gateway is shutting down"),
        Unavailable("down", stage="talker"),
    ]

    def answer(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        if failures:
            raise failures.pop(0)
        return greeting(request, server)

    assert (await ask(serve(answer).address, retry=SOON)).text == "Hello"


WRONG_ADDRESS = [ask_blocking, ask_async, info_blocking, info_async, talk_blocking, talk_async]


@pytest.mark.parametrize("ask", WRONG_ADDRESS, ids=lambda each: each.__name__)
async def test_a_wrong_address_ends_with_the_address_and_how_long_it_was_tried(
    deaf_address: str, ask: Callable[..., Awaitable[object]], caplog: pytest.LogCaptureFixture
) -> None:
    retry = antiphon.Retry(within_s=0.5, longest_pause_s=0.1)
    with pytest.raises(Unavailable, match=r"attempts: \d+ in \d+\.\d s") as failed:
        await ask(deaf_address, retry=retry)
    assert deaf_address in failed.value.message
    assert "refused" in failed.value.message
    assert isinstance(failed.value.__cause__, grpc.RpcError)
    (waiting,) = records_of(caplog, "antiphon.client")
    assert deaf_address in waiting.getMessage()


@pytest.mark.parametrize("ask", WRONG_ADDRESS, ids=lambda each: each.__name__)
async def test_a_server_that_has_never_answered_is_tried_for_seconds(
    deaf_address: str, ask: Callable[..., Awaitable[object]]
) -> None:
    retry = antiphon.Retry(within_s=1e4, connect_within_s=0.3, longest_pause_s=0.1)
    with pytest.raises(Unavailable, match="no server has responded at this address") as failed:
        await ask(deaf_address, retry=retry)
    assert f"{deaf_address}: " in failed.value.message
    assert "connect_within_s" in failed.value.message


@both
async def test_a_server_that_refuses_has_answered(serve: Serve, ask: Ask) -> None:
    server = serve(failing(4, Unavailable("the gateway is shutting down")))
    retry = antiphon.Retry(connect_within_s=0.0, pause_s=0.01, longest_pause_s=0.05)
    assert (await ask(server.address, retry=retry)).text == "Hello"


@pytest.mark.parametrize("ask", WRONG_ADDRESS, ids=lambda each: each.__name__)
async def test_a_client_that_must_not_retry_asks_once(
    deaf_address: str, ask: Callable[..., Awaitable[object]], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Unavailable, match="refused"):
        await ask(deaf_address, retry=antiphon.Retry(attempts=1))
    assert not records_of(caplog, "antiphon.client")


async def test_client_cancel_ends_the_pause_before_a_retry(serve: Serve) -> None:
    server = serve(failing(9, ResourceExhausted("no slot", retry_after_s=500)))
    patient = antiphon.Retry(within_s=1000)

    def blocking() -> None:
        with antiphon.Client(server.address, retry=patient) as client:
            generation = client.generate("Hi", timeout_s=1000)
            # It was refused once, and whenever it reads, it waits.
            assert server.cancelled.wait(timeout=GENEROUS_S)
            generation.cancel()
            with pytest.raises(Cancelled):
                next(generation)

    await asyncio.to_thread(blocking)
    server.cancelled.clear()
    async with antiphon.AsyncClient(server.address, retry=patient) as client:
        reading = asyncio.ensure_future(anext(client.generate("Hi", timeout_s=1000)))
        assert await asyncio.to_thread(server.cancelled.wait, GENEROUS_S)
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
            generation = client.generate("Hi", idle_timeout_s=2.0)
            assert next(generation) == antiphon.TextDelta("Hel")
            with pytest.raises(DeadlineExceeded, match="idle_timeout_s"):
                next(generation)
            assert server.cancelled.wait(timeout=GENEROUS_S)

    async def awaiting(server: Speech) -> None:
        async with antiphon.AsyncClient(server.address) as client:
            generation = client.generate("Hi", idle_timeout_s=2.0)
            assert await anext(generation) == antiphon.TextDelta("Hel")
            with pytest.raises(DeadlineExceeded, match="idle_timeout_s"):
                await anext(generation)
            assert await asyncio.to_thread(server.cancelled.wait, GENEROUS_S)

    await asyncio.gather(asyncio.to_thread(blocking, serve(hang)), awaiting(serve(hang)))


async def test_client_idle_timeout_does_not_run_while_nobody_reads(serve: Serve) -> None:
    def answer(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        yield text("a")
        server.hang.wait(timeout=GENEROUS_S)
        yield from greeting(request, server)

    server = serve(answer)
    with antiphon.Client(server.address) as client:
        watched = client.generate("Hi", idle_timeout_s=2.0)
        next(watched)
        # Another call's reader waits for longer than the first may, and is given up.
        with pytest.raises(DeadlineExceeded):
            list(client.generate("Hi", idle_timeout_s=2.5))
        server.hang.set()
        assert sum(isinstance(event, antiphon.Finished) for event in watched) == 1


REACHED = Contact(made=True)


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_attempts_pauses_double_up_to_the_longest_and_dice_take_half() -> None:
    retry = antiphon.Retry(attempts=6, within_s=100, pause_s=1, longest_pause_s=4)
    error = Unavailable("gone", stage="talker")
    attempts = Attempts(retry, 1000, REACHED, Clock(), lambda: 0.0)
    assert [attempts.pause_after(error) for _ in range(6)] == [1, 2, 4, 4, 4, None]
    halved = Attempts(retry, 1000, REACHED, Clock(), lambda: 1.0)
    assert halved.pause_after(error) == 0.5
    told = Attempts(retry, 1000, REACHED, Clock(), lambda: 1.0)
    assert told.pause_after(ResourceExhausted("full", retry_after_s=7)) == 7.5


def tries_of(attempts: Attempts, clock: Clock, error: AntiphonError) -> list[float]:
    """When the tries are made, counted from now on, of which each one fails at once."""
    began_s, made = clock.now_s, []
    while (pause_s := attempts.pause_after(error)) is not None:
        clock.now_s += pause_s
        made.append(clock.now_s - began_s)
    return made


def test_a_server_that_is_away_is_tried_for_the_whole_time_from_the_first_failure_on() -> None:
    clock = Clock()
    retry = antiphon.Retry(attempts=2, within_s=10, pause_s=1, longest_pause_s=4)
    attempts = Attempts(retry, 1000, REACHED, clock, lambda: 0.0)
    # The call itself has run for long.
    clock.now_s = 500
    away = Unavailable("connection refused")
    assert tries_of(attempts, clock, away) == [1, 3, 7, 10]
    assert attempts.ended(away).message == "connection refused (attempts: 5 in 10.0 s)"
    attempts.succeeded()
    assert tries_of(attempts, clock, away) == [1, 3, 7, 10]


def test_a_server_counts_as_new_until_it_has_answered() -> None:
    clock, contact = Clock(), Contact()
    retry = antiphon.Retry(within_s=10, connect_within_s=3, pause_s=1, longest_pause_s=4)
    away = Unavailable("connection refused")
    attempts = Attempts(retry, 1000, contact, clock, lambda: 0.0)
    assert tries_of(attempts, clock, away) == [1, 3]
    contact.made = True
    attempts.succeeded()
    assert tries_of(attempts, clock, away) == [1, 3, 7, 10]
    assert "no server has responded" not in attempts.ended(away).message
    assert antiphon.Retry().connect_within_s == 5.0


def test_very_many_tries_of_a_server_that_is_away_are_counted() -> None:
    clock = Clock()
    retry = antiphon.Retry(within_s=5_000, pause_s=1, longest_pause_s=1)
    attempts = Attempts(retry, 1e6, REACHED, clock, lambda: 0.0)
    assert len(tries_of(attempts, clock, Unavailable("away"))) == 5_000


def test_attempts_end_before_the_calls_deadline() -> None:
    clock = Clock()
    short = Attempts(antiphon.Retry(within_s=10, pause_s=1), 5, REACHED, clock, lambda: 0.0)
    clock.now_s = 3
    assert short.left_s == 2
    assert short.pause_after(ResourceExhausted("full", retry_after_s=2)) is None
    clock.now_s = 4.5
    assert short.pause_after(Unavailable("away")) is None
    clock.now_s = 9
    assert short.left_s == 0


def test_attempts_are_one_when_the_error_is_not_retryable() -> None:
    attempts = Attempts(antiphon.Retry(), 100, REACHED, Clock(), lambda: 0.0)
    assert attempts.pause_after(DataLoss("lost")) is None


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"attempts": 0}, "retry.attempts"),
        ({"attempts": 10**6}, "retry.attempts"),
        ({"within_s": -1}, "retry.within_s"),
        ({"connect_within_s": -1}, "retry.connect_within_s"),
        ({"pause_s": float("nan")}, "retry.pause_s"),
        ({"pause_s": 0}, "retry.pause_s"),
        ({"longest_pause_s": "1"}, "retry.longest_pause_s"),
    ],
)
def test_retry_refuses_values_out_of_range(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        antiphon.Retry(**given)
    assert refused.value.field == field


def test_a_channel_looks_for_a_server_more_often_than_a_call_is_tried() -> None:
    """It fails calls at once between two looks, whatever listens at the address meanwhile."""
    options, most_by_chance = dict(CHANNEL_OPTIONS), 1.2
    pause_ms = 1000 * antiphon.Retry().longest_pause_s
    for most_ms, option in (
        (pause_ms / 2, "grpc.max_reconnect_backoff_ms"),
        (pause_ms, "grpc.dns_min_time_between_resolutions_ms"),
    ):
        set_ms = options[option]
        assert isinstance(set_ms, int)
        assert set_ms * most_by_chance < most_ms
