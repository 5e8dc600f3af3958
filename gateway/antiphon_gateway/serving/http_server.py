"""uvicorn's server, adapted to how the gateway starts and stops it."""

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
"""The interval in seconds at which the date in responses is updated."""
SHUTDOWN_GRACE_S = 1.0
"""The number of seconds that a stopping gateway waits for completed answers to be sent."""

# The maximum amount of unsent data. By default, the kernel buffers megabytes for a client that
# isn't reading. For audio, this would be a minute that counts as having been read.
UNSENT_BYTES = 64 << 10


def listen(
    host: str, port: int, *, field: str, share: bool = False
) -> tuple[list[socket.socket], str]:
    """Return listening TCP sockets and the "host:port" that they have in common. With `share`,
    other gateways can listen there as well. Raises `Unavailable` if an address is already in use.
    """
    try:
        listeners = listen_sockets(host, port, share=share)
    except OSError as error:
        words = (error.strerror or str(error)).partition(" (while")[0]
        raise Unavailable(f"{field}: {joined(host, port)}: {words}", field=field) from error
    for each in listeners:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return listeners, joined(host, listeners[0].getsockname()[1])


class HttpServer(uvicorn.Server):
    """uvicorn's server without its signal handling, which is up to the process.

    With `tls`, it accepts connections itself. This allows the `ConnectionLimiter`, which creates
    its protocols, to count connections before their handshakes.
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
        """Make `serve` return."""
        self.should_exit = True
        self._ended.set()

    async def main_loop(self) -> None:
        """Wait until the server ends. uvicorn checks this ten times per second and updates the date
        once per second.
        """
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._ended.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on these sockets. With uvicorn's own method, clients would have one minute for
        their handshake.
        """
        if self._tls is None or sockets is None:
            await super().startup(sockets)
            return
        await super().startup([])
        for each in sockets:
            task = asyncio.create_task(accept_connections(each, self._accepted))
            self._accepting.append(task)

    def stop_accepting(self) -> None:
        """Stop accepting connections. Existing ones continue."""
        for task in self._accepting:
            task.cancel()
        for server in self.servers:
            server.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections and end existing ones the way uvicorn does."""
        self.stop_accepting()
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
        """Don't install any signal handlers."""
        yield

    def cut_connections(self) -> None:
        """End all connections, even if something is still waiting for them."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
