"""uvicorn's server, as the gateway starts and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import cast

import uvicorn

from antiphon.deployment.address import joined
from antiphon.errors import Unavailable
from antiphon.transport.listening import listen_sockets
from antiphon_gateway.endpoints.http.connection import ConnectionLimiter
from antiphon_gateway.serving.accepting import accept_connections, start_connection

DATE_S = 1.0
"""Between two dates of responses."""
SHUTDOWN_GRACE_S = 1.0
"""How long an answer that is over may take to leave, when the gateway stops."""

# The kernel alone would take megabytes for a client that reads nothing: a minute of
# audio that counts as taken. So much of it may lie unsent.
UNSENT_BYTES = 64 << 10


def listen(host: str, port: int, *, field: str) -> tuple[list[socket.socket], str]:
    """Listening TCP sockets, and the "host:port" of all of them. Raises `Unavailable` when an
    address is taken."""
    try:
        listeners = listen_sockets(host, port)
    except OSError as error:
        words = (error.strerror or str(error)).partition(" (while")[0]
        raise Unavailable(f"{field}: {joined(host, port)}: {words}", field=field) from error
    for each in listeners:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return listeners, joined(host, listeners[0].getsockname()[1])


class HttpServer(uvicorn.Server):
    """uvicorn's server, with the signals left to the process.

    With `tls` it accepts the connections itself, so that the `ConnectionLimiter` that makes its
    protocols counts them before their handshakes.
    """

    def __init__(
        self, config: uvicorn.Config, tls: ssl.SSLContext | None, handshake_s: float
    ) -> None:
        super().__init__(config)
        self._tls = tls
        self._handshake_s = handshake_s
        self._accepting: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()

    def end(self) -> None:
        """End `serve`."""
        self.should_exit = True
        self._ended.set()

    async def main_loop(self) -> None:
        """Wait for the end. uvicorn looks for it ten times a second, and sets the date once."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._ended.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve at these sockets; uvicorn itself gives a client a minute for its handshake."""
        if self._tls is None or sockets is None:
            await super().startup(sockets)
            return
        await super().startup([])
        for each in sockets:
            task = asyncio.create_task(accept_connections(each, self._accepted))
            self._accepting.append(task)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and end those that exist as uvicorn does."""
        for each in self._accepting:
            each.cancel()
        if self._accepting:
            self._connection_limiter.end_handshakes()
        await super().shutdown(sockets)

    @property
    def _connection_limiter(self) -> ConnectionLimiter:
        return cast(ConnectionLimiter, self.config.http_protocol_class)

    def _accepted(self, connected: socket.socket, _: str) -> None:
        connection = self._connection_limiter(self.config, self.server_state, self.lifespan.state)
        connection.count_handshake(
            start_connection(
                connected,
                connection,
                self._tls,
                handshake_s=self._handshake_s,
                shutdown_s=SHUTDOWN_GRACE_S,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take no signals."""
        yield

    def cut_connections(self) -> None:
        """End all connections, whatever waits on them."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
