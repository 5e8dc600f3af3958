"""uvicorn's server, as the gateway starts and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import cast

import uvicorn

from antiphon.deployment.address import joined
from antiphon.errors import Unavailable
from antiphon.transport.listening import listen_sockets

LAST_WORDS_S = 1.0
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
    """uvicorn's server, with the signals left to the process."""

    def __init__(
        self, config: uvicorn.Config, tls: ssl.SSLContext | None, handshake_s: float
    ) -> None:
        super().__init__(config)
        self._tls = tls
        self._handshake_s = handshake_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve at these sockets; uvicorn itself gives a client a minute for its handshake."""
        if self._tls is None or sockets is None:
            await super().startup(sockets)
            return
        await super().startup([])
        for each in sockets:
            server = await asyncio.get_running_loop().create_server(
                self._connection,
                sock=each,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=LAST_WORDS_S,
                backlog=self.config.backlog,
            )
            self.servers.append(server)

    def _connection(self) -> asyncio.Protocol:
        kind = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        return kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take no signals."""
        yield

    def cut_connections(self) -> None:
        """End all connections, whatever waits on them."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
