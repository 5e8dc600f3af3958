"""The HTTP connection of the benchmark that opens calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from benchmarks.opening.keep_alive import KeepAlive

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HEALTHY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[str]:
    """Run a server that answers the requests of a connection in turn and then closes it."""

    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left: Iterator[bytes] = iter(answers)
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n") and (answer := next(left, None)):
                writer.write(answer)
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
        await ended.wait()


async def test_keep_alive_passes_on_the_body_of_each_response() -> None:
    body = CHUNKED + b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    pieces: list[bytes] = []
    async with answering(HEALTHY, body, body) as address:
        connection = await KeepAlive.open(address)
        for _ in range(2):
            await connection.request("GET", "/", on_body=pieces.append)
        connection.close()
    assert b"".join(pieces) == b"onetwo" * 2


async def test_keep_alive_raises_when_the_status_is_an_error() -> None:
    refusal = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    async with answering(HEALTHY, refusal) as address:
        connection = await KeepAlive.open(address)
        with pytest.raises(RuntimeError, match="503"):
            await connection.request("GET", "/")
        connection.close()


async def test_keep_alive_raises_when_the_connection_is_lost() -> None:
    async with answering(HEALTHY) as address:
        connection = await KeepAlive.open(address)
        with pytest.raises(ConnectionResetError):
            await connection.request("GET", "/")
