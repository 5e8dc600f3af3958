"""The connections of the gRPC endpoint. They are accepted and limited here and served by gRPC.

gRPC's C core doesn't limit the number of connections per address or most types of frames, and a
Python server can't access its sockets. The gateway therefore accepts the connections itself,
terminates TLS, counts the frames (`frame_meter.py`), and forwards the bytes to gRPC through a Unix
socket (`socket_names.py`). Flow control and back-pressure still work end to end, because reading
stops in each direction once `BUFFER_BYTES` bytes are buffered.
"""

from __future__ import annotations

import asyncio
import ipaddress
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
from antiphon_gateway.serving.socket_names import SocketName, SocketNames

BUFFER_BYTES = 64 << 10
BUDGETS = 10_000
"""The number of addresses for which frame budgets are kept. The address that has gone the longest
without a new connection is forgotten first.
"""


@dataclass(frozen=True, slots=True)
class FrontBounds:
    """The limits of the gRPC endpoint.

    `connections` is the maximum number of connections, and `per_address` is the maximum for one
    client address. `head_s` is the time in seconds within which the first bytes must arrive,
    including TLS. `closing_s` is the number of seconds that a client has to read the remaining data
    when its connection ends.
    """

    connections: int
    per_address: int
    head_s: float
    closing_s: float


def network_of(address: str) -> str:
    """Return the part of an address that identifies a client. For IPv6, this is the /64 network,
    which may belong to a single host.
    """
    if ":" not in address:
        return address
    full = ipaddress.IPv6Address(address.partition("%")[0])
    if full.ipv4_mapped is not None:
        return str(full.ipv4_mapped)
    return str(ipaddress.IPv6Network((full, 64), strict=False))


class GrpcFront:
    """Accepts connections and forwards them to `target`, which is the address of a Unix socket.

    `count` is called whenever a client reaches a limit. `peers` receives the addresses of clients.
    If all connections are in use and a client connects from another address, one connection is
    closed to make room. It belongs to the address with the most connections, and it is the one that
    has been silent the longest.
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
        self.names = SocketNames()
        self.target = ""
        self.tls = tls
        self._by_address: dict[str, OrderedDict[ClientSide, None]] = {}
        self._budgets: OrderedDict[str, FrameBudget] = OrderedDict()
        self._accepting: list[asyncio.Task[None]] = []

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return sum(map(len, self._by_address.values()))

    def start(self, listeners: Sequence[socket.socket]) -> None:
        """Start to accept connections."""
        for each in listeners:
            task = asyncio.create_task(accept_connections(each, self._accepted))
            self._accepting.append(task)

    def stop(self) -> None:
        """Stop accepting connections."""
        for each in self._accepting:
            each.cancel()

    def abort(self) -> None:
        """Cut all connections immediately."""
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
        """Make room for a connection or refuse it."""
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
        """Return the frame budget that is shared by all connections from an address."""
        budget = self._budgets.pop(address, None) or FrameBudget()
        self._budgets[address] = budget
        if len(self._budgets) > BUDGETS:
            self._budgets.popitem(last=False)
        return budget

    def moved(self, connection: ClientSide) -> None:
        """Record that a connection has sent some data."""
        own = self._by_address.get(connection.address)
        if own is not None and connection in own:
            own.move_to_end(connection)

    def forget(self, connection: ClientSide) -> None:
        """Record that a connection has ended. This can be called more than once."""
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
        self._name: SocketName = front.names.new("client")
        self._moved_at_s = self._loop.time()
        self._meter = FrameMeter(front.budget_of(address))
        self._transport: asyncio.Transport | None = None
        self._server_side: ServerSide | None = None
        # Data that arrived before the connection to gRPC was established.
        self._early = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def silent_s(self) -> float:
        """Return the number of seconds since the connection last sent any data."""
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
        """Limit the amount of data that is buffered for the client."""
        self._transport = transport
        transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Count the frames and forward the bytes."""
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
        """Connect to gRPC, which then applies its own deadlines."""
        connecting = socket.socket(socket.AF_UNIX)
        connecting.setblocking(False)
        try:
            connecting.bind(self._name.address)
            self._front.peers.add(self._name.uri, self._host)
            # Don't use the event loop for this, because uvloop treats an abstract name as an empty
            # one.
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
        finally:
            self._name.unlink()
        self._set_deadline(None)
        self._server_side = server_side
        server_side.transport.write(bytes(self._early))
        self._early.clear()
        self.pause(paused=False)

    def pause_writing(self) -> None:
        """Pause gRPC's side, because the client isn't reading."""
        if (server_side := self._server_side) and not server_side.transport.is_closing():
            server_side.transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume gRPC's side, because the client is reading again."""
        if (server_side := self._server_side) and not server_side.transport.is_closing():
            server_side.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End gRPC's side as well."""
        self._end()

    def send(self, data: bytes) -> None:
        """Forward data from gRPC."""
        if self._transport is not None:
            self._transport.write(data)

    def pause(self, *, paused: bool) -> None:
        """Stop reading while gRPC isn't reading."""
        if self._transport is None or self._transport.is_closing():
            return
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def finish(self) -> None:
        """Give the client some time to read the remaining data, because gRPC has closed
        its side.
        """
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
        """Release the connection's resources. This can be called more than once."""
        self._front.forget(self)
        self._front.peers.remove(self._name.uri)
        self._set_deadline(None)
        if self._task is not None and self._task is not asyncio.current_task(self._loop):
            self._task.cancel()
        if self._server_side is not None:
            self._server_side.transport.abort()

    def _end_unconnected(self) -> None:
        """Release the connection if it has no transport, which means that the TLS
        handshake failed.
        """
        if self._transport is None:
            self._end()

    def _set_deadline(self, after_s: float | None) -> None:
        """Cut the connection after this time. This replaces any previous deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if after_s is None else self._loop.call_later(after_s, self.abort)


class ServerSide(asyncio.Protocol):
    """gRPC's end of a connection."""

    transport: asyncio.Transport

    def __init__(self, client: ClientSide) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Limit the amount of data that is buffered for gRPC."""
        self.transport = transport
        transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Forward the data."""
        self._client.send(data)

    def pause_writing(self) -> None:
        """Pause the client's side, because gRPC isn't reading."""
        self._client.pause(paused=True)

    def resume_writing(self) -> None:
        """Resume the client's side, because gRPC is reading again."""
        self._client.pause(paused=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the client's side as well."""
        self._client.finish()
