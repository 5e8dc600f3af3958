"""Both clients, with their defaults, while nothing that answers is at their server's address."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

import antiphon
from antiphon.errors import InvalidArgument
from tests.unit.client.name_server import NameServer
from tests.unit.client.speech_server import Speech, greeting
from tests.unit.client.twins import ask_async, ask_blocking

Serve = Callable[..., Speech]
Ask = Callable[..., Awaitable[antiphon.Reply]]
both = pytest.mark.parametrize("ask", [ask_blocking, ask_async], ids=["blocking", "async"])
FROM_THE_START = antiphon.Retry(connect_within_s=60.0)
"""Waits for a server that has not answered yet as long as for one that has."""
LOOKS = 12
"""Connections that a channel tries to make while a call is tried more than three times."""


@contextmanager
def closing_listener() -> Iterator[tuple[int, threading.Semaphore]]:
    """Accepts connections and closes them at once, as a proxy without a server does: its port, and
    how many there were."""
    accepted = threading.Semaphore(0)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.close()
                accepted.release()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()[1], accepted
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


@both
async def test_connections_that_break_before_any_answer_are_made_again(
    serve: Serve, ask: Ask
) -> None:
    with closing_listener() as (port, accepted):
        asking = asyncio.ensure_future(ask(f"127.0.0.1:{port}", retry=FROM_THE_START))
        for _ in range(LOOKS):
            assert await asyncio.to_thread(accepted.acquire, timeout=240)
        # Until the listener is closed, each of the two gets some of the connections.
        serve(greeting, port=port)
    assert (await asking).text == "Hello"


@pytest.fixture
def names() -> Iterator[NameServer]:
    server = NameServer()
    yield server
    server.close()


@both
async def test_a_name_that_does_not_exist_yet_is_resolved_again(
    serve: Serve, names: NameServer, ask: Ask
) -> None:
    server = serve(greeting)
    asking = asyncio.ensure_future(ask(names.target(server.port), retry=FROM_THE_START))
    await asyncio.to_thread(names.wait_asked, 3)
    names.host = "127.0.0.1"
    assert (await asking).text == "Hello"


@both
async def test_a_name_is_found_at_its_new_address(
    serve: Serve, names: NameServer, ask: Ask
) -> None:
    """As of a pod that is replaced: its old address refuses connections."""
    server = serve(greeting, host="127.0.0.2")
    # Other tests listen on 127.0.0.1 or on all addresses. The server's port is not one of the
    # latter's.
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.3", server.port))
        names.host = "127.0.0.3"
        asking = asyncio.ensure_future(ask(names.target(server.port)))
        await asyncio.to_thread(names.wait_asked, 1)
        names.host = "127.0.0.2"
        assert (await asking).text == "Hello"


@both
async def test_a_port_that_speaks_no_http_2_is_refused_at_once(ask: Ask) -> None:
    answer = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nInvalid HTTP request received."

    async def serve_http_1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve_http_1, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(InvalidArgument, match=f"{address} is not a gRPC port") as refused:
            await ask(address)
    assert refused.value.field == "address"
