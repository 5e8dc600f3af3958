"""One HTTP connection, bounded: uvicorn's protocol with what it leaves open.

uvicorn serves as many connections as come, for as long as they stay, reads heads of any size,
and waits for ever for a client that takes nothing of an answer. And it stops reading when a
second request comes before the first is answered, so that it does not notice when that client
goes. Here

- a connection without a request in progress is *idle*, and must send a head within a time,
- a TLS handshake counts as an idle connection,
- bytes that are neither body nor a complete head are bounded, trailers and chunk lines too,
- a request that comes before its predecessor is answered is not taken, and its connection is
  closed after that answer; reading goes on, so the client's leaving is seen,
- a connection that is closed with something unsent has a time for it to be taken,
- a gateway that stops keeps no connection, so that its clients find another one,
- an offer to upgrade to anything but WebSocket is ignored (RFC 9110, 7.8). httptools ends the
  request at its head then, and refuses what follows: a new parser gets the head without the
  offer, and the rest. Java's HttpClient makes such an offer with every request.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, InvalidArgument, Unavailable
from antiphon_gateway.admission.byte_budget import SILENT_S
from antiphon_gateway.endpoints.http.errors import BodyTooSlow, error_json
from antiphon_gateway.endpoints.http.request_head import origin_form
from antiphon_gateway.endpoints.http.websocket import BoundedWebSocket
from antiphon_gateway.metrics import Refused

_OFFER = frozenset((b"upgrade", b"http2-settings"))
"""Headers, and tokens of `Connection`, of an offer to upgrade."""
MOST_FIELD_BYTES = 8 << 10
"""Of a header field of a WebSocket's handshake: the library never answers longer lines."""
LINGER_S = 2.0
"""How long a refused client may go on sending before it is cut off, so that it reads why."""


class ConnectionLimiter:
    """The state that connections of a gateway share. `count` is called for each limit that is
    reached."""

    def __init__(self, config: GatewayConfig, count: Callable[[Refused], None]) -> None:
        self.config = config
        self.count = count
        self.all: set[BoundedConnection] = set()
        self.idle: OrderedDict[BoundedConnection, None] = OrderedDict()
        # TLS handshakes that have not ended, the oldest first.
        self.handshakes: OrderedDict[BoundedConnection, asyncio.Task[None]] = OrderedDict()
        self.websockets: set[BoundedWebSocket] = set()
        # No connection has a second request from now on.
        self.leaving = False

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> BoundedConnection:
        """A connection, as uvicorn makes one."""
        return BoundedConnection(self, config, server_state, app_state, _loop)

    def websocket(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> BoundedWebSocket:
        """What a connection becomes when it is upgraded."""
        closing_s = self.config.connections.send_timeout_s
        return BoundedWebSocket(self.websockets, closing_s, config, server_state, app_state)

    def send_elsewhere(self) -> None:
        """Close connections after their current requests, so that clients reconnect."""
        self.leaving = True
        for connection in tuple(self.all):
            connection.send_elsewhere()

    def end_handshakes(self) -> None:
        """Cut the connections that have not completed their TLS handshake."""
        for task in list(self.handshakes.values()):
            task.cancel()

    @property
    def connections(self) -> int:
        """All connections: upgraded, not upgraded, and those in a TLS handshake."""
        return len(self.all) + len(self.websockets) + len(self.handshakes)

    @property
    def longest_idle(self) -> BoundedConnection | None:
        """The connection that has been idle, or in its TLS handshake, for longest."""
        firsts = (next(iter(each), None) for each in (self.idle, self.handshakes))
        found = [each for each in firsts if each is not None]
        return min(found, key=lambda each: each.idle_since, default=None)


class BoundedConnection(HttpToolsProtocol):
    """See the head of this file. `scope["state"]["transport"]` is the connection's."""

    def __init__(
        self,
        connection_limiter: ConnectionLimiter,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self._connection_limiter = connection_limiter
        self._bounds = connection_limiter.config
        self._timer: asyncio.TimerHandle | None = None
        # Bytes that came since the parser last had a head, a piece of body or an end.
        self._pending_bytes = 0
        self._heard_at = self.idle_since = self.loop.time()
        # Nothing that still comes is taken.
        self._deaf = False
        self._deaf_bytes = 0

    def count_handshake(self, handshake: asyncio.Task[None]) -> None:
        """Count as a connection during a TLS handshake, which calls `connection_made`."""
        handshakes = self._connection_limiter.handshakes
        handshakes[self] = handshake
        handshake.add_done_callback(lambda _: handshakes.pop(self, None))
        if (
            self._connection_limiter.connections > self._bounds.connections.max_connections
            and not self._make_room()
        ):
            self._connection_limiter.count(Refused.CONNECTIONS)
            handshake.cancel()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room, or refuse."""
        super().connection_made(transport)
        self._connection_limiter.handshakes.pop(self, None)
        self._connection_limiter.all.add(self)
        if (
            self._connection_limiter.connections > self._bounds.connections.max_connections
            and not self._make_room()
        ):
            self._refuse_connection()
        if not self._deaf:
            self._become_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._set_timer(None)
        self._connection_limiter.all.discard(self)
        self._connection_limiter.idle.pop(self, None)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection on to a protocol of its own."""
        self._set_timer(None)
        self._connection_limiter.all.discard(self)
        self._connection_limiter.idle.pop(self, None)
        super().handle_websocket_upgrade()

    def evict(self) -> None:
        """Give the place to another connection."""
        self._connection_limiter.count(Refused.IDLE_CONNECTION)
        if (handshake := self._connection_limiter.handshakes.pop(self, None)) is not None:
            handshake.cancel()
            return
        self._connection_limiter.all.discard(self)
        self._connection_limiter.idle.pop(self, None)
        self.transport.abort()

    def send_elsewhere(self) -> None:
        """Close it when it has been answered; one that has just come is answered first."""
        if self.cycle is not None:
            self.shutdown()

    def data_received(self, data: bytes) -> None:
        """Hand bytes to the parser, as long as they are bounded."""
        self._heard_at = self.loop.time()
        if self._deaf:
            self._deaf_bytes += len(data)
            if self._deaf_bytes > self._bounds.connections.max_head_bytes and self._answering():
                self.transport.abort()
            return
        if self._timer is None and not self._answering():
            self._set_timer(self._bounds.connections.head_timeout_s, self._head_is_late)
        self._pending_bytes += len(data)
        self._parse(data)
        if self._pending_bytes > self._bounds.connections.max_head_bytes and not self._deaf:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """A request begins; one that is early is not taken."""
        if self._answering():
            self._connection_limiter.count(Refused.PIPELINED)
            self._deaf = True
            self.cycle.keep_alive = False
        if not self._deaf:
            super().on_message_begin()
            self.scope["state"]["transport"] = self.transport

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        if not self._deaf:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header or a trailer; trailers are not read."""
        if not self._deaf and not self._answering():
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A head is there: a request is in progress."""
        if self._deaf or self._ignores_offer():
            return
        self._pending_bytes = 0
        if self.parser.get_method() == b"CONNECT":
            what = "CONNECT is not supported: this server is not a proxy"
            self._refuse(400, InvalidArgument(what))
            return
        try:
            self.url = origin_form(self.url, self.headers)
        except InvalidArgument as error:
            self._refuse(400, error)
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._bounds.connections.max_head_bytes:
            self._refuse_head()
            return
        self._set_timer(None)
        self._connection_limiter.idle.pop(self, None)
        super().on_headers_complete()
        if self._connection_limiter.leaving and self._answering():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._pending_bytes = 0
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request; one that offers an upgrade has not been read yet."""
        if self._deaf or self._ignores_offer():
            return
        self._pending_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is written, not yet taken: it has a time for that."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._set_timer(self._bounds.connections.send_timeout_s, self._closing_is_late)
        else:
            self._become_idle()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, and see that it ends."""
        super().timeout_keep_alive_handler()
        self._set_timer(self._bounds.connections.send_timeout_s, self._closing_is_late)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP; the answer under way, if there is one, is not disturbed.

        A body that breaks off in the middle has no answer yet: its request ends as if the client
        had gone, and the client reads why.
        """
        if self._deaf:
            return
        if not self._answering():
            self._refuse(400, InvalidArgument("this is no HTTP request"))
        elif self.cycle.response_started:
            self.transport.abort()
        else:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._refuse(400, InvalidArgument("the body's chunks or trailers are no HTTP"))

    def _parse(self, data: bytes) -> None:
        """Hand bytes to the parser, to a new one after each ignored offer to upgrade."""
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if self._deaf:
                    return
                if self._should_upgrade():
                    self._become_websocket()
                    return
                data = self._head_without_offer() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            except httptools.HttpParserError:
                self.send_400_response("")
                return

    def _become_websocket(self) -> None:
        """Hand the connection over, unless the handshake would never be answered."""
        if any(len(name) + len(value) > MOST_FIELD_BYTES for name, value in self.headers):
            self._connection_limiter.count(Refused.HEAD_BYTES)
            what = f"a header field of the handshake has more than {MOST_FIELD_BYTES} bytes"
            self._refuse(431, InvalidArgument(what))
            return
        self.handle_websocket_upgrade()

    def _should_upgrade(self) -> bool:
        """Whether the request becomes a WebSocket; in HTTP/1.0 nothing does."""
        plain_get = self.parser.get_method() == b"GET" and self.parser.get_http_version() == "1.1"
        return plain_get and super()._should_upgrade()

    def _ignores_offer(self) -> bool:
        """Whether this head offers an upgrade that is not taken."""
        return (
            self.parser.should_upgrade()
            and self.parser.get_method() != b"CONNECT"
            and not self._should_upgrade()
        )

    def _head_without_offer(self) -> bytes:
        """The head of the request in progress, as if it offered no upgrade."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(each for each in tokens if each.lower() not in _OFFER)
            if name not in _OFFER:
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _become_idle(self) -> None:
        self.idle_since = self.loop.time()
        self._connection_limiter.idle[self] = None
        self._connection_limiter.idle.move_to_end(self)
        if self.cycle is None:
            self._set_timer(self._bounds.connections.head_timeout_s, self._head_is_late)

    @property
    def waits_for_body_since(self) -> float:
        """The time of the last bytes of an incomplete body; infinite if no bytes are missing."""
        return self._heard_at if self._answering() and self.cycle.more_body else math.inf

    def _make_room(self) -> bool:
        """Evict the connection that has been idle, or silent in its body, for longest; False if
        there is none."""
        idle = self._connection_limiter.longest_idle
        if idle is not None and idle is not self:
            idle.evict()
            return True
        bodies = self._connection_limiter.all
        silent = min(bodies, key=lambda each: each.waits_for_body_since, default=self)
        if silent.waits_for_body_since < self.loop.time() - SILENT_S:
            silent.evict()
            return True
        return False

    def _refuse_connection(self) -> None:
        self._connection_limiter.count(Refused.CONNECTIONS)
        most = self._bounds.connections.max_connections
        full = Unavailable(f"all of gateway.connections.max_connections ({most}) are in use")
        self._refuse(503, full, linger_s=0)

    def _refuse_head(self) -> None:
        self._connection_limiter.count(Refused.HEAD_BYTES)
        most = self._bounds.connections.max_head_bytes
        if self._answering():
            self.transport.abort()
            return
        status = 414 if len(self.url) > most else 431
        what = f"the request's target and headers have more than {most} bytes"
        self._refuse(
            status, InvalidArgument(f"{what}; gateway.connections.max_head_bytes sets the bound")
        )

    def _head_is_late(self) -> None:
        if self._pending_bytes:
            self._connection_limiter.count(Refused.HEAD_TIME)
            timeout_s = self._bounds.connections.head_timeout_s
            self._refuse(408, BodyTooSlow(f"no whole request head came within {timeout_s:g} s"))
        else:
            self._connection_limiter.count(Refused.IDLE_CONNECTION)
            self.transport.abort()

    def _closing_is_late(self) -> None:
        self._connection_limiter.count(Refused.SEND_TIME)
        self.transport.abort()

    def _refuse(self, status: int, error: AntiphonError, linger_s: float = LINGER_S) -> None:
        """Respond without the application, and stop reading."""
        self._deaf = True
        self._connection_limiter.idle.pop(self, None)
        body = error_json(error)
        head = (
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-should-retry: {'true' if error.retryable else 'false'}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        # Closing with something unread would take the answer from the client.
        if linger_s:
            self.transport.write_eof()
        else:
            self.transport.close()
        self._set_timer(linger_s or LINGER_S, self.transport.abort)

    def _set_timer(self, after_s: float | None, then: Callable[[], None] | None = None) -> None:
        """Have one thing done later, in place of what was to be."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if after_s is not None and then is not None:
            self._timer = self.loop.call_later(after_s, then)
