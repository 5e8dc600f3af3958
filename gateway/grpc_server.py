"""The gRPC door: a server, and at its end another one in its place.

gRPC sends clients elsewhere (GOAWAY) only from a server that stops, and that one listens no more. A
client that stays connected would ask a gateway that refuses it again and again, while others
serve. So when the gateway drains, a second server takes the door, whose services refuse by type
whoever connects anew, and the first one finishes the calls that it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import grpc

from antiphon.deployment.address import host_and_port, joined
from antiphon.errors import Unavailable
from antiphon.transport.listening import listen_at, listen_sockets, wait_closed

log = logging.getLogger(__name__)

FIELD = "gateway.grpc_listen"


class GrpcServer:
    """`add` gives a server its services. Raises `InvalidArgument` for a wrong address."""

    def __init__(
        self,
        listen: str,
        add: Callable[[grpc.aio.Server], None],
        options: Sequence[tuple[str, int]],
        credentials: Callable[[], grpc.ServerCredentials] | None,
    ) -> None:
        host_and_port(listen, field=FIELD)
        self._listen = listen
        self._add = add
        # Two servers of this process listen at the same port while one takes over.
        self._options = list({**dict(options), "grpc.so_reuseport": 1}.items())
        self._credentials = credentials
        self._servers: list[grpc.aio.Server] = []
        self._finishing: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Serve; "host:port". Raises `Unavailable` where the address is taken."""
        _check_free(self._listen)
        host, _ = host_and_port(self._listen, field=FIELD)
        _, port = host_and_port(await self._serve_at(self._listen), field=FIELD)
        self._listen = joined(host, port)
        return self._listen

    async def wait_closed(self) -> None:
        """Return when it serves no more although nobody has stopped it."""
        (first,) = self._servers
        await wait_closed(first)

    async def send_elsewhere(self, finish_s: float) -> None:
        """Have clients connect anew, and finish their calls for so long; the door stays open."""
        (first,) = self._servers
        try:
            await self._serve_at(self._listen)
        except Unavailable as error:
            log.warning("nobody is told why it is refused: %s", error.message)
        self._finishing = asyncio.create_task(first.stop(finish_s))

    async def stop(self, grace_s: float) -> None:
        """Listen no more; what runs then has so long."""
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))
        if self._finishing is not None:
            await self._finishing

    async def _serve_at(self, address: str) -> str:
        server = grpc.aio.server(options=self._options)
        self._add(server)
        served_at = listen_at(server, address, field=FIELD, credentials=self._credentials)
        await server.start()
        self._servers.append(server)
        return served_at


def _check_free(address: str) -> None:
    """Raise `Unavailable` where somebody listens already, with whom the port would be shared."""
    host, port = host_and_port(address, field=FIELD)
    try:
        listeners = listen_sockets(host, port)
    except OSError as error:
        words = (error.strerror or str(error)).partition(" (while")[0]
        raise Unavailable(
            f"{FIELD}: cannot listen on {address}: {words}; choose another port, or stop "
            "what listens there",
            field=FIELD,
        ) from error
    for each in listeners:
        each.close()
