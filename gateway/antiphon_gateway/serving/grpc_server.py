"""The gRPC endpoint: a server behind `GrpcFront`, and a second server during the drain.

gRPC sends clients elsewhere (GOAWAY) only from a server that stops, and a stopping server accepts
no connections. A client that stays connected would send requests to a gateway that refuses them
again and again, while other gateways could serve them. During the drain, new connections therefore
go to a second server, whose services refuse all calls, and the first server finishes its calls.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Sequence

import grpc

from antiphon.deployment.address import host_and_port
from antiphon.transport.listening import wait_closed
from antiphon_gateway.keys.credentials import GrpcPeers
from antiphon_gateway.metrics import Refused
from antiphon_gateway.serving.grpc_front import FrontBounds, GrpcFront
from antiphon_gateway.serving.http_server import listen

FIELD = "gateway.grpc_listen"


class GrpcServer:
    """`add` gives a server its services. Raises `InvalidArgument` for a wrong address."""

    def __init__(
        self,
        address: str,
        add: Callable[[grpc.aio.Server], None],
        options: Sequence[tuple[str, int]],
        bounds: FrontBounds,
        tls: ssl.SSLContext | None,
        count: Callable[[Refused], None],
        peers: GrpcPeers,
    ) -> None:
        self._listen = host_and_port(address, field=FIELD)
        self._add = add
        self._options = options
        self._front = GrpcFront(bounds, tls, count, peers)
        self._servers: list[grpc.aio.Server] = []
        self._finishing: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """Those that are open."""
        return self._front.connections

    async def start(self) -> str:
        """Serve; "host:port". Raises `Unavailable` where the address is taken."""
        listeners, address = listen(*self._listen, field=FIELD)
        await self._serve()
        self._front.start(listeners)
        return address

    async def wait_closed(self) -> None:
        """Return if the server stops serving without being stopped."""
        (first,) = self._servers
        await wait_closed(first)

    async def send_elsewhere(self, finish_s: float) -> None:
        """Have clients connect again, and finish their calls for so long; the endpoint stays
        open."""
        (first,) = self._servers
        await self._serve()
        self._finishing = asyncio.create_task(first.stop(finish_s))

    async def stop(self, grace_s: float) -> None:
        """Listen no more; what runs then has so long."""
        self._front.stop()
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))
        if self._finishing is not None:
            await self._finishing
        self._front.abort()

    async def _serve(self) -> None:
        """Have a server take all new connections from now on."""
        server = grpc.aio.server(options=self._options)
        self._add(server)
        # An abstract name: there is no file, and only this network namespace has it.
        name = f"antiphon-{secrets.token_hex(16)}"
        server.add_insecure_port(f"unix-abstract:{name}")
        await server.start()
        self._servers.append(server)
        self._front.target = f"\0{name}"
