"""Accepting connections on bare sockets."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from antiphon_gateway.serving.accepting import accept_connections, start_connection
from tests.open_files import no_more_files

pytestmark = pytest.mark.asyncio


class Recorded(logging.Handler):
    """The event of the first record."""

    def __init__(self) -> None:
        super().__init__()
        self.event = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.event.set()


@contextmanager
def recorded() -> Iterator[asyncio.Event]:
    handler = Recorded()
    log = logging.getLogger("antiphon_gateway.serving.accepting")
    log.addHandler(handler)
    try:
        yield handler.event
    finally:
        log.removeHandler(handler)


@asynccontextmanager
async def accepting(accepted: Callable[[socket.socket, str], None]) -> AsyncIterator[Any]:
    """Accept; the listener's address."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    task = asyncio.create_task(accept_connections(listener, accepted))
    try:
        yield address
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert listener.fileno() == -1


async def test_accepting_goes_on_when_descriptors_are_free_again() -> None:
    accepted: asyncio.Queue[socket.socket] = asyncio.Queue()
    with recorded() as exhausted:
        async with accepting(lambda connection, _: accepted.put_nowait(connection)) as address:
            with socket.socket() as client:
                client.setblocking(False)
                with no_more_files():
                    client.connect_ex(address)
                    await exhausted.wait()
                    assert accepted.empty()
                (await accepted.get()).close()


async def test_accepting_goes_on_after_an_error_of_a_connection() -> None:
    accepted: asyncio.Queue[str] = asyncio.Queue()
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

    def take(connection: socket.socket, address: str) -> None:
        connection.close()
        accepted.put_nowait(address)
        raise RuntimeError("a fault")

    async with accepting(take) as address:
        for _ in range(2):
            with socket.socket() as client:
                client.setblocking(False)
                client.connect_ex(address)
                assert await accepted.get() == "127.0.0.1"
    assert len(errors) == 2


async def test_a_connection_that_is_cancelled_before_it_begins_is_closed() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        task = start_connection(ours, asyncio.Protocol(), None, handshake_s=1.0, shutdown_s=1.0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert ours.fileno() == -1
        assert theirs.recv(1) == b""
