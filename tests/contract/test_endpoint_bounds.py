"""Clients that send too much, too little or read nothing, on bare sockets."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
import pytest_asyncio

from antiphon.errors import DeadlineExceeded
from antiphon.v1 import speech_pb2
from antiphon.values.segment import FinishReason
from antiphon.wire.status import error_from_rpc
from antiphon.wire.stubs import speech_stub
from antiphon_gateway import server
from antiphon_gateway.endpoints.http.connection import ConnectionLimiter
from antiphon_gateway.endpoints.http.response_send import PIECE_BYTES
from antiphon_gateway.metrics import Refused
from tests.contract.converse_client import read_to_end
from tests.contract.fake_stages import THINKER, Session
from tests.contract.raw_http import PATH, RawClient, chat_body, post, raw_client
from tests.contract.served_gateway import ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

SMALL_BUFFER = 1 << 12
GENEROUS_S = 120.0
LARGE_BYTES = 16 << 20
"""More of an answer than both hosts' kernels take."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def refusals(bound: str) -> str:
    return f'antiphon_gateway_refused_total{{bound="{bound}"}}'


async def answer_at_length(session: Session) -> None:
    await session.opened()
    for _ in range(LARGE_BYTES >> 18):
        await session.text("x" * (1 << 18))
    await session.chunk("text", finish=FinishReason.STOP)
    await session.report()


class Begun:
    """A thinker that begins and goes on for as long as it is let."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, session: Session) -> None:
        await session.opened()
        await session.text("begun")
        self.event.set()
        await self.go_on.wait()
        await session.chunk("text", finish=FinishReason.STOP)
        await session.report()


class Ended(logging.Handler):
    """The log's lines of requests that are over."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: asyncio.Queue[Any] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.put_nowait(json.loads(record.getMessage()))

    async def next(self) -> Any:
        return await self._lines.get()


@pytest_asyncio.fixture(loop_scope="session")
async def ended() -> AsyncIterator[Ended]:
    log = logging.getLogger("gateway.requests")
    handler, level = Ended(), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.setLevel(level)
    log.removeHandler(handler)


async def half_sent(client: RawClient, size: int) -> None:
    """Announce a body of twice the size and send that much of it, once it is awaited."""
    await client.send(post(b"", length=2 * size, headers="Expect: 100-continue\r\n"))
    assert await client.reader.readexactly(len(CONTINUE)) == CONTINUE
    await client.send(b" " * size)


def error_of(body: bytes) -> str:
    message: str = json.loads(body)["error"]["message"]
    return message


async def test_whole_answers_that_nobody_reads_take_no_call_slot() -> None:
    async with serve_gateway(max_calls=2) as served, AsyncExitStack() as stack:
        begun: asyncio.Queue[None] = asyncio.Queue()

        async def begin(session: Session) -> None:
            begun.put_nowait(None)
            await answer_at_length(session)

        served.fakes[THINKER].script = begin
        attackers = [
            await stack.enter_async_context(raw_client(served, receive_buffer=SMALL_BUFFER))
            for _ in range(2)
        ]
        for attacker in attackers:
            await attacker.send(post(chat_body()))
            await begun.get()
        await served.gateway.calls.wait_idle()
        for attacker in attackers:
            await attacker.send(post(chat_body()))
        for _ in range(3):
            assert (await served.chat()).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_takes_nothing_is_cut_off(ended: Ended, stream: bool) -> None:
    async with (
        serve_gateway(send_timeout_s=0.3) as served,
        raw_client(served, receive_buffer=SMALL_BUFFER) as client,
    ):
        served.fakes[THINKER].script = answer_at_length
        await client.send(post(chat_body(stream=stream)))
        assert (await ended.next())["error"] == "deadline_exceeded"
        assert len(await client.wait_cut()) < LARGE_BYTES
        assert await served.metric(refusals("send_timeout_s")) == 1
        assert await served.metric('antiphon_gateway_memory_bytes{holder="unread"}') == 0
        await served.gateway.calls.wait_idle()


async def test_what_is_unsent_when_a_connection_is_closed_has_a_time_to_be_taken(
    ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: asyncio.Queue[Refused] = asyncio.Queue()
    monkeypatch.setattr(
        server, "ConnectionLimiter", lambda config, _: ConnectionLimiter(config, counted.put_nowait)
    )
    size = 0

    async def answer(session: Session) -> None:
        await session.opened()
        await session.text("x" * size)
        await session.chunk("text", finish=FinishReason.STOP)
        await session.report()

    async with (
        asyncio.timeout(GENEROUS_S),
        serve_gateway(send_timeout_s=0.3) as served,
        AsyncExitStack() as stack,
    ):
        served.fakes[THINKER].script = answer
        # What the kernels take differs. Above it there are sizes of which the last piece is
        # given to the connection, which is closed, and not taken; then those that have to wait.
        line: Any = {}
        while "error" not in line:
            size += PIECE_BYTES // 2
            client = await stack.enter_async_context(
                raw_client(served, receive_buffer=SMALL_BUFFER)
            )
            await client.send(post(chat_body(), headers="Connection: close\r\n"))
            line = await ended.next()
        assert line["error"] == "deadline_exceeded"
        assert await counted.get() is Refused.SEND_TIME


async def test_a_gateway_in_a_hurry_does_not_wait_for_clients_that_take_nothing() -> None:
    async with asyncio.timeout(GENEROUS_S), AsyncExitStack() as stack:
        async with serve_gateway(drain_s=3600, send_timeout_s=3600) as served:
            begun = asyncio.Event()

            async def begin(session: Session) -> None:
                begun.set()
                await answer_at_length(session)

            served.fakes[THINKER].script = begin
            client = await stack.enter_async_context(
                raw_client(served, receive_buffer=SMALL_BUFFER)
            )
            await client.send(post(chat_body()))
            await begun.wait()
            await served.gateway.calls.wait_idle()
            served.gateway.force_stop()
        assert len(await client.wait_cut()) < LARGE_BYTES


async def test_a_grpc_client_that_takes_nothing_is_cut_off(ended: Ended) -> None:
    async with (
        serve_gateway(send_timeout_s=0.5, request_timeout_s=2) as served,
        grpc.aio.insecure_channel(served.gateway.grpc_address) as channel,
    ):
        served.fakes[THINKER].script = answer_at_length
        request = speech_pb2.GenerateRequest(modalities=["text"])
        request.messages.add(role="user").parts.add(text="Hi")
        call: Any = speech_stub(channel).Generate(request)
        assert (await call.read()).HasField("started")
        assert (await ended.next())["error"] == "deadline_exceeded"
        # It is told why, once it listens.
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await read_to_end(call)
        assert isinstance(error_from_rpc(told.value), DeadlineExceeded)


async def test_answers_are_refused_when_unread_ones_take_all_room() -> None:
    async with serve_gateway(max_memory_bytes=400) as served:
        refused = await served.chat()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        message = refused.json()["error"]["message"]
        assert "unread answers have used up their share of gateway.limits.max_memory_by" in message
        assert await served.metric(refusals("memory_unread")) == 1
        assert (await served.chat(stream=True)).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_clients_leaving_is_noticed_behind_a_pipelined_request(
    served: ServedGateway, stream: bool
) -> None:
    begun = Begun()
    served.fakes[THINKER].script = begun
    async with raw_client(served) as client:
        await client.send(2 * post(chat_body(stream=stream)))
        await begun.event.wait()
        await client.send(post(chat_body(stream=stream)))
    (session,) = served.fakes[THINKER].sessions
    await session.cancelled.wait()
    await served.gateway.calls.wait_idle()


async def test_what_comes_behind_a_pipelined_request_is_bounded(served: ServedGateway) -> None:
    begun = Begun()
    served.fakes[THINKER].script = begun
    async with asyncio.timeout(GENEROUS_S), raw_client(served) as client:
        await client.send(2 * post(chat_body()))
        await begun.event.wait()
        client.writer.write(b"x" * 400_000)
        assert not (await client.wait_cut()).startswith(b"HTTP")
        (session,) = served.fakes[THINKER].sessions
        await session.cancelled.wait()
    await served.gateway.calls.wait_idle()


async def test_the_first_of_pipelined_requests_is_answered_and_the_connection_closed(
    served: ServedGateway,
) -> None:
    async with raw_client(served) as client:
        await client.send(2 * post(chat_body()))
        status, headers, body = await client.response()
        assert (status, headers["connection"]) == (200, "close")
        assert json.loads(body)["choices"][0]["message"]["content"] == "Hello wörld!"
        assert await client.wait_cut() == b""
    assert len(served.fakes[THINKER].sessions) == 1


async def test_requests_one_after_the_other_share_a_connection(served: ServedGateway) -> None:
    async with raw_client(served) as client:
        for _ in range(3):
            await client.send(post(chat_body()))
            assert (await client.response())[0] == 200


@pytest.mark.parametrize("metadata", ["[" + "[]," * 5000 + "[]]", "{" + '"a":1,' * 5000 + '"a":1}'])
async def test_a_body_of_many_small_values_is_refused_before_it_is_decoded(metadata: str) -> None:
    async with serve_gateway(max_body_values=4000) as served, raw_client(served) as client:
        await client.send(post(chat_body()[:-1] + b',"metadata":' + metadata.encode() + b"}"))
        status, _, body = await client.response()
        assert status == 413
        assert "max_body_values" in error_of(body)
        assert await served.metric(refusals("max_body_values")) == 1
        await client.send(post(chat_body()))
        assert (await client.response())[0] == 200


async def test_a_body_that_does_not_come_is_a_408() -> None:
    async with serve_gateway(body_timeout_s=0.2) as served, raw_client(served) as client:
        await half_sent(client, 100)
        status, headers, body = await client.response()
        assert (status, headers["x-should-retry"]) == (408, "false")
        assert "body_timeout_s" in error_of(body)
        assert await served.metric(refusals("body_timeout_s")) == 1


async def test_half_sent_bodies_are_bounded_together_and_stop_no_small_one() -> None:
    size, most = 400 << 10, 1 << 20
    async with (
        serve_gateway(max_calls=2, max_memory_bytes=4 * most) as served,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(raw_client(served)) for _ in range(6)]
        for client in clients:
            await half_sent(client, size)
            assert await served.metric('antiphon_gateway_memory_bytes{holder="uploads"}') <= most
        answers = [asyncio.create_task(each.response()) for each in clients]
        done, waiting = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        status, headers, _ = done.pop().result()
        assert (status, headers["x-should-retry"]) == (429, "true")
        assert (await served.chat()).status_code == 200
        assert await served.metric(refusals("memory_uploads")) >= 1
        for each in waiting:
            each.cancel()


async def test_half_sent_bodies_are_refused_when_the_gateway_is_told_to_stop() -> None:
    async with AsyncExitStack() as stack:
        async with serve_gateway(drain_s=60) as served:
            client = await stack.enter_async_context(raw_client(served))
            await half_sent(client, 100)
        assert (await client.response())[0] == 503


HEADS = {
    "a target": (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
    "a header": (b"GET /health HTTP/1.1\r\nx: " + b"x" * 70_000 + b"\r\n\r\n", 431),
    "many headers": (b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 20_000 + b"\r\n", 431),
    "a header without end": (b"GET /health HTTP/1.1\r\nx: " + b"x" * 400_000, 431),
    "a name without end": (b"GET /health HTTP/1.1\r\n" + b"x" * 400_000, 431),
}


@pytest.mark.parametrize("name", HEADS)
async def test_a_head_that_is_too_large_is_refused(served: ServedGateway, name: str) -> None:
    head, expected = HEADS[name]
    before = await served.metric(refusals("max_head_bytes"))
    async with raw_client(served) as client:
        await client.send(head)
        status, headers, body = await client.response()
        assert (status, headers["connection"]) == (expected, "close")
        assert "max_head_bytes" in error_of(body)
        assert await client.wait_cut() == b""
    assert await served.metric(refusals("max_head_bytes")) == before + 1


@pytest.mark.parametrize("tail", [b"0\r\nx: ", b"1;x="], ids=["trailer", "chunk extension"])
async def test_what_is_no_body_between_chunks_is_bounded(
    served: ServedGateway, tail: bytes
) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    async with raw_client(served) as client:
        await client.send(head + tail + b"x" * 400_000)
        assert not (await client.wait_cut()).startswith(b"HTTP")


@pytest.mark.parametrize(
    "body", [b"-1\r\n", b"zz\r\n", b"1\r\nab\r\n", b"1\r\n{\r\n0\r\nContent-Length: 5\r\n\r\n"]
)
async def test_a_body_that_is_no_http_is_refused_with_the_reason(
    served: ServedGateway, body: bytes
) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    async with raw_client(served) as client:
        await client.send(head + body)
        status, headers, answer = await client.response()
        assert (status, headers["connection"]) == (400, "close")
        assert "chunks" in error_of(answer)
        assert await client.wait_cut() == b""
    assert not served.fakes[THINKER].sessions
    assert (await served.chat()).status_code == 200


@pytest.mark.parametrize("coding", ["gzip", "deflate", "gzip, identity"])
async def test_a_body_with_a_coding_is_refused_with_the_remedy(
    served: ServedGateway, coding: str
) -> None:
    answer = await served.http.post(PATH, content=chat_body(), headers={"Content-Encoding": coding})
    assert answer.status_code == 415
    assert "send the body uncompressed" in answer.json()["error"]["message"]
    plain = {"Content-Encoding": "identity"}
    assert (await served.http.post(PATH, content=chat_body(), headers=plain)).status_code == 200


async def test_a_body_may_begin_with_a_byte_order_mark(served: ServedGateway) -> None:
    answer = await served.http.post(PATH, content=b"\xef\xbb\xbf" + chat_body())
    assert answer.status_code == 200


@pytest.mark.parametrize("half", [r"\ud83d", r"\uDE00", r"\ud83d\ud83d\ude00"])
async def test_half_of_a_surrogate_pair_is_named(served: ServedGateway, half: str) -> None:
    body = chat_body(messages=[{"role": "user", "content": "HALF"}])
    answer = await served.http.post(PATH, content=body.replace(b"HALF", half.encode()))
    assert answer.status_code == 400
    assert f"{half[:6]} is only half of a surrogate pair" in answer.json()["error"]["message"]
    whole = body.replace(b"HALF", rb"\ud83d\ude00")
    assert (await served.http.post(PATH, content=whole)).status_code == 200


async def test_small_chunks_of_a_body_are_no_head(served: ServedGateway) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    body = chat_body(messages=[{"role": "user", "content": "x" * 20_000}])
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    async with raw_client(served) as client:
        await client.send(head + chunks + b"0\r\n\r\n")
        assert (await client.response())[0] == 200


@pytest.mark.parametrize("beginning", [b"", b"GET /hea"])
async def test_a_connection_without_a_request_is_cut(beginning: bytes) -> None:
    async with serve_gateway(head_timeout_s=0.3) as served, raw_client(served) as client:
        await client.send(beginning)
        told = await client.wait_cut()
        if beginning:
            assert told.startswith(b"HTTP/1.1 408 ")
            assert await served.metric(refusals("head_timeout_s")) == 1
        else:
            assert not told.startswith(b"HTTP")


async def test_idle_connections_give_way_to_new_ones() -> None:
    async with serve_gateway(max_connections=3) as served, AsyncExitStack() as stack:
        await served.http.aclose()
        silent = [await stack.enter_async_context(raw_client(served)) for _ in range(8)]
        async with raw_client(served) as client:
            await client.send(post(chat_body()))
            assert (await client.response())[0] == 200
        for each in silent[:5]:
            assert not (await each.wait_cut()).startswith(b"HTTP")


async def test_connections_are_refused_when_all_have_requests() -> None:
    async with serve_gateway(max_connections=2) as served, AsyncExitStack() as stack:
        await served.http.aclose()
        begun = Begun()
        served.fakes[THINKER].script = begun
        for _ in range(2):
            begun.event.clear()
            busy = await stack.enter_async_context(raw_client(served))
            await busy.send(post(chat_body()))
            await begun.event.wait()
        async with raw_client(served) as client:
            status, headers, body = await client.response()
            assert (status, headers["x-should-retry"]) == (503, "true")
            assert "max_connections" in error_of(body)
        begun.go_on.set()
        assert (await busy.response())[0] == 200


async def test_what_is_no_http_is_refused(served: ServedGateway) -> None:
    async with raw_client(served) as client:
        await client.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        status, _, body = await client.response()
        assert (status, "HTTP" in error_of(body)) == (400, True)


@pytest.mark.parametrize(
    "head",
    [
        "CONNECT localhost:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "CONNECT [::1]:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "CONNECT localhost:443 HTTP/1.0\r\n\r\n",
        f"CONNECT {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
        "CONNECT / HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\n\r\n",
        "CONNECT / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    ],
)
@pytest.mark.parametrize("earlier", [False, True], ids=["first", "second"])
async def test_a_connect_request_is_rejected_with_the_reason(
    served: ServedGateway, head: str, earlier: bool
) -> None:
    async with raw_client(served) as client:
        if earlier:
            await client.send(post(chat_body()))
            assert (await client.response())[0] == 200
        await client.send(head.encode())
        status, headers, answer = await client.response()
        assert (status, headers["connection"]) == (400, "close")
        assert error_of(answer) == "CONNECT is not supported: this server is not a proxy"
        assert await client.wait_cut() == b""
    assert (await served.chat()).status_code == 200
