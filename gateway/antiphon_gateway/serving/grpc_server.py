"""The gRPC endpoint. It consists of two servers. `GrpcFront` forwards connections to the first one.
The second one is used while the first one drains.

gRPC asks clients to connect elsewhere (GOAWAY) only when the server is stopping, but a server that
is stopping doesn't accept connections. A client that stays connected would keep sending requests to
a gateway that refuses them, although other gateways could serve them. During the drain, new
connections therefore go to a second server. Its services refuse all calls, while the first server
finishes its own calls.
"""

from __future__ import annotations

import asyncio
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
    """The gRPC endpoint. `add` registers the services with a server. With `share`, other gateways
    can listen on the same port. Raises `InvalidArgument` if the address is invalid.
    """

    def __init__(
        self,
        address: str,
        add: Callable[[grpc.aio.Server], None],
        options: Sequence[tuple[str, int]],
        bounds: FrontBounds,
        tls: ssl.SSLContext | None,
        count: Callable[[Refused], None],
        peers: GrpcPeers,
        *,
        share: bool = False,
    ) -> None:
        self._share = share
        self._listen = host_and_port(address, field=FIELD)
        self._add = add
        self._options = options
        self._front = GrpcFront(bounds, tls, count, peers)
        self._servers: list[grpc.aio.Server] = []
        self._finishing: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return self._front.connections

    async def start(self) -> str:
        """Start serving. Returns the address as "host:port". Raises `Unavailable` if the address is
        already in use.
        """
        listeners, address = listen(*self._listen, field=FIELD, share=self._share)
        await self._serve()
        self._front.start(listeners)
        return address

    async def wait_closed(self) -> None:
        """Wait until the server stops for any reason other than a call of `stop`."""
        (first,) = self._servers
        await wait_closed(first)

    def stop_accepting(self) -> None:
        """Stop accepting connections. Existing ones continue."""
        self._front.stop()

    async def send_elsewhere(self, finish_s: float) -> None:
        """Make clients reconnect and give their current calls this many seconds to finish. The
        endpoint stays open.
        """
        (first,) = self._servers
        await self._serve()
        self._finishing = asyncio.create_task(first.stop(finish_s))

    async def stop(self, grace_s: float) -> None:
        """Stop listening. Calls in progress have this many seconds to finish."""
        self._front.stop()
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))
        if self._finishing is not None:
            await self._finishing
        self._front.abort()
        self._front.names.close()

    async def _serve(self) -> None:
        """Start a server that handles all new connections from now on."""
        server = grpc.aio.server(options=self._options)
        self._add(server)
        name = self._front.names.new("server")
        server.add_insecure_port(name.uri)
        await server.start()
        self._servers.append(server)
        self._front.target = name.address
