"""The gRPC endpoint's connections: accepted and bounded here, served by gRPC.

gRPC's C core has no bound on the connections of one address and none on most kinds of frames, and a
Python server has no access to its sockets. So the gateway accepts the connections, terminates TLS,
meters the frames (`frame_meter.py`) and passes the bytes on to gRPC over a Unix socket that has no
name in a file system. Flow control and back-pressure stay end to end: each direction holds at most
`BUFFER_BYTES` before it stops reading.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antiphon_gateway.admission.byte_budget import SILENT_S
from antiphon_gateway.keys.credentials import GrpcPeers
from antiphon_gateway.metrics import Refused
from antiphon_gateway.serving.accepting import accept_connections, start_connection
from antiphon_gateway.serving.frame_meter import FrameBudget, FrameFlood, FrameMeter
from antiphon_gateway.serving.http_server import SHUTDOWN_GRACE_S

BUFFER_BYTES = 64 << 10
BUDGETS = 10_000
"""Addresses whose frame budget is kept; the one that connected longest ago is forgotten."""


@dataclass(frozen=True, slots=True)
class FrontBounds:
    """Bounds of the gRPC endpoint.

    `connections`: all together. `per_address`: of one client address. `head_s`: until the first
    bytes, TLS included. `closing_s`: for a client to read the rest when its connection ends.
    """

    connections: int
    per_address: int
    head_s: float
    closing_s: float


def network_of(address: str) -> str:
    """What counts as one client address: of IPv6 its /64 network, which one host may own."""
    if ":" not in address:
        return address
    full = ipaddress.IPv6Address(address.partition("%")[0])
    if full.ipv4_mapped is not None:
        return str(full.ipv4_mapped)
    return str(ipaddress.IPv6Network((full, 64), strict=False))


class GrpcFront:
    """Accepts connections and passes them on to `target`, the path of a Unix socket.

    `count` receives the bounds that clients run into, and `peers` the clients' addresses. When all
    connections are in use, the longest silent one of the address with most gives way to an address
    with fewer.
    """

    def __init__(
        self,
        bounds: FrontBounds,
        tls: ssl.SSLContext | None,
        count: Callable[[Refused], None],
        peers: GrpcPeers,
    ) -> None:
        self.bounds = bounds
        self.count = count
        self.peers = peers
        self.target = ""
        self.tls = tls
        self._by_address: dict[str, OrderedDict[ClientSide, None]] = {}
        self._budgets: OrderedDict[str, FrameBudget] = OrderedDict()
        self._accepting: list[asyncio.Task[None]] = []

    @property
    def connections(self) -> int:
        """Those that are open."""
        return sum(map(len, self._by_address.values()))

    def start(self, listeners: Sequence[socket.socket]) -> None:
        """Accept connections."""
        for each in listeners:
            task = asyncio.create_task(accept_connections(each, self._accepted))
            self._accepting.append(task)

    def stop(self) -> None:
        """Accept no more connections."""
        for each in self._accepting:
            each.cancel()

    def abort(self) -> None:
        """Cut all connections."""
        for connections in list(self._by_address.values()):
            for each in list(connections):
                each.abort()

    def _accepted(self, connected: socket.socket, address: str) -> None:
        connection = ClientSide(self, address)
        if self.admit(connection):
            connection.open(connected)
        else:
            connected.close()

    def admit(self, new: ClientSide) -> bool:
        """Make room for a connection, or refuse it."""
        own = self._by_address.get(new.address, ())
        if len(own) >= self.bounds.per_address:
            self.count(Refused.GRPC_ADDRESS)
            return False
        if self.connections >= self.bounds.connections:
            self.count(Refused.GRPC_CONNECTIONS)
            most = max(self._by_address.values(), key=len)
            longest = next(iter(most))
            if len(most) <= len(own) + 1 or longest.silent_s < SILENT_S:
                return False
            longest.abort()
        self._by_address.setdefault(new.address, OrderedDict())[new] = None
        return True

    def budget_of(self, address: str) -> FrameBudget:
        """The frames that an address may send, on all of its connections together."""
        budget = self._budgets.pop(address, None) or FrameBudget()
        self._budgets[address] = budget
        if len(self._budgets) > BUDGETS:
            self._budgets.popitem(last=False)
        return budget

    def moved(self, connection: ClientSide) -> None:
        """A connection has sent something."""
        own = self._by_address.get(connection.address)
        if own is not None and connection in own:
            own.move_to_end(connection)

    def forget(self, connection: ClientSide) -> None:
        """A connection has ended; further calls do nothing."""
        own = self._by_address.get(connection.address)
        if own is not None:
            own.pop(connection, None)
            if not own:
                del self._by_address[connection.address]


class ClientSide(asyncio.Protocol):
    """The client's end of a connection from `address`."""

    def __init__(self, front: GrpcFront, host: str) -> None:
        self._front = front
        self._loop = asyncio.get_running_loop()
        self.address = address = network_of(host)
        self._host = host
        self._name = f"antiphon-client-{secrets.token_hex(16)}"
        self._moved_at_s = self._loop.time()
        self._meter = FrameMeter(front.budget_of(address))
        self._transport: asyncio.Transport | None = None
        self._server_side: ServerSide | None = None
        # Received before gRPC's side is connected.
        self._early = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def silent_s(self) -> float:
        """Time since it last sent something."""
        return self._loop.time() - self._moved_at_s

    def open(self, connected: socket.socket) -> None:
        """Take over an accepted socket."""
        self._deadline = self._loop.call_later(self._front.bounds.head_s, self.abort)
        bounds = self._front.bounds
        self._task = start_connection(
            connected,
            self,
            self._front.tls,
            handshake_s=bounds.head_s,
            shutdown_s=SHUTDOWN_GRACE_S,
        )
        self._task.add_done_callback(lambda _: self._end_unconnected())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bound what is held for the client."""
        self._transport = transport
        transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Meter the frames and pass the bytes on."""
        self._moved_at_s = self._loop.time()
        self._front.moved(self)
        try:
            self._meter.add(data, self._moved_at_s)
        except FrameFlood:
            self._front.count(Refused.GRPC_FRAMES)
            self.abort()
            return
        if self._server_side is not None:
            self._server_side.transport.write(data)
            return
        if not self._early:
            self.pause(paused=True)
            self._task = self._loop.create_task(self._connect_grpc())
        self._early += data

    async def _connect_grpc(self) -> None:
        """Connect to gRPC, which has deadlines of its own for what follows."""
        connecting = socket.socket(socket.AF_UNIX)
        connecting.setblocking(False)
        try:
            connecting.bind(f"\0{self._name}")
            self._front.peers.add(self._name, self._host)
            # Not by the loop: uvloop takes an abstract name for an empty one.
            connecting.connect(self._front.target)
            _, server_side = await self._loop.create_unix_connection(
                lambda: ServerSide(self), sock=connecting
            )
        except OSError:
            # gRPC is being stopped.
            connecting.close()
            self.abort()
            return
        except BaseException:
            connecting.close()
            raise
        self._set_deadline(None)
        self._server_side = server_side
        server_side.transport.write(bytes(self._early))
        self._early.clear()
        self.pause(paused=False)

    def pause_writing(self) -> None:
        """The client does not read."""
        if (server_side := self._server_side) and not server_side.transport.is_closing():
            server_side.transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads."""
        if (server_side := self._server_side) and not server_side.transport.is_closing():
            server_side.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End gRPC's side as well."""
        self._end()

    def send(self, data: bytes) -> None:
        """Pass on what gRPC sends."""
        if self._transport is not None:
            self._transport.write(data)

    def pause(self, *, paused: bool) -> None:
        """Read nothing while gRPC takes nothing."""
        if self._transport is None or self._transport.is_closing():
            return
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def finish(self) -> None:
        """gRPC has closed its side: the client may read the rest within a time."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.close()
        self._set_deadline(self._front.bounds.closing_s)

    def abort(self) -> None:
        """Cut the connection."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        """Release what the connection has; further calls do nothing."""
        self._front.forget(self)
        self._front.peers.remove(self._name)
        self._set_deadline(None)
        if self._task is not None and self._task is not asyncio.current_task(self._loop):
            self._task.cancel()
        if self._server_side is not None:
            self._server_side.transport.abort()

    def _end_unconnected(self) -> None:
        """The TLS handshake has failed, if there is no transport."""
        if self._transport is None:
            self._end()

    def _set_deadline(self, after_s: float | None) -> None:
        """Cut the connection after a time, in place of any earlier deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if after_s is None else self._loop.call_later(after_s, self.abort)


class ServerSide(asyncio.Protocol):
    """gRPC's end of a connection."""

    transport: asyncio.Transport

    def __init__(self, client: ClientSide) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bound what is held for gRPC."""
        self.transport = transport
        transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        self._client.send(data)

    def pause_writing(self) -> None:
        """gRPC does not read."""
        self._client.pause(paused=True)

    def resume_writing(self) -> None:
        """gRPC reads."""
        self._client.pause(paused=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client's side ends, too."""
        self._client.finish()
