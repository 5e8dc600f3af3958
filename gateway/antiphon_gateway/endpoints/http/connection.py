"""An HTTP connection with limits that uvicorn's protocol lacks.

uvicorn accepts any number of connections for any length of time, reads request heads of any size,
and waits forever for a client that does not read its response. If a second request arrives before
the first one has been answered, it stops reading and does not notice when the client disconnects.
This module changes the following:

- a connection that has no request in progress is *idle* and must send a head within a time limit,
- a TLS handshake counts as an idle connection,
- the number of bytes that belong neither to a body nor to a complete head is limited, including
  trailers and chunk lines,
- a request that arrives before the previous one has been answered is not accepted, and the
  connection is closed after that answer. Reading continues, so that a client that disconnects is
  noticed,
- if a connection is closed while data is unsent, the client has a limited time to read it,
- when the gateway stops, it closes all connections, so that its clients connect to another gateway,
- an offer to upgrade to anything other than WebSocket is ignored (RFC 9110, 7.8). In such a case,
  httptools ends the request after its head and rejects all data that follows. The head is therefore
  passed to a new parser without the offer, followed by the remaining data. Java's HttpClient makes
  such an offer with every request.
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
"""The headers that make up an offer to upgrade. They are also tokens in the `Connection` header."""
MOST_FIELD_BYTES = 8 << 10
"""The maximum length of a header field in a WebSocket handshake. If a line is longer than this, the
WebSocket library never responds.
"""
LINGER_S = 2.0
"""The number of seconds for which a refused client can keep sending before its connection is cut.
This gives it time to read the reason.
"""


class ConnectionLimiter:
    """State that is shared by all connections of a gateway. `count` is called whenever a limit is
    reached.
    """

    def __init__(self, config: GatewayConfig, count: Callable[[Refused], None]) -> None:
        self.config = config
        self.count = count
        self.all: set[BoundedConnection] = set()
        self.idle: OrderedDict[BoundedConnection, None] = OrderedDict()
        # TLS handshakes in progress, with the oldest first.
        self.handshakes: OrderedDict[BoundedConnection, asyncio.Task[None]] = OrderedDict()
        self.websockets: set[BoundedWebSocket] = set()
        # Set when connections should no longer accept another request.
        self.leaving = False

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> BoundedConnection:
        """Create a connection. uvicorn calls this."""
        return BoundedConnection(self, config, server_state, app_state, _loop)

    def websocket(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> BoundedWebSocket:
        """Create the protocol that takes over when a connection is upgraded to a WebSocket."""
        closing_s = self.config.connections.send_timeout_s
        return BoundedWebSocket(self.websockets, closing_s, config, server_state, app_state)

    def send_elsewhere(self) -> None:
        """Close all connections after their current requests, so that clients connect to another
        gateway.
        """
        self.leaving = True
        for connection in tuple(self.all):
            connection.send_elsewhere()

    def end_handshakes(self) -> None:
        """Close all connections that haven't completed their TLS handshake."""
        for task in list(self.handshakes.values()):
            task.cancel()

    @property
    def connections(self) -> int:
        """The total number of connections, including those that have been upgraded or are in a TLS
        handshake.
        """
        return len(self.all) + len(self.websockets) + len(self.handshakes)

    @property
    def longest_idle(self) -> BoundedConnection | None:
        """Return the connection that has been idle or in its TLS handshake for the longest time."""
        firsts = (next(iter(each), None) for each in (self.idle, self.handshakes))
        found = [each for each in firsts if each is not None]
        return min(found, key=lambda each: each.idle_since, default=None)


class BoundedConnection(HttpToolsProtocol):
    """A connection with the limits described in the module docstring. Applications can access it as
    `scope["state"]["transport"]`.
    """

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
        # The number of bytes since the parser last found a head, a piece of a body, or the end of a
        # request.
        self._pending_bytes = 0
        self._heard_at = self.idle_since = self.loop.time()
        # Set when any further data is to be ignored.
        self._deaf = False
        self._deaf_bytes = 0

    def count_handshake(self, handshake: asyncio.Task[None]) -> None:
        """Count the connection while its TLS handshake is in progress. After that,
        `connection_made` is called.
        """
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
        """Make room for the connection or refuse it."""
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
        """Remove the connection from the shared state."""
        self._set_timer(None)
        self._connection_limiter.all.discard(self)
        self._connection_limiter.idle.pop(self, None)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the WebSocket protocol."""
        self._set_timer(None)
        self._connection_limiter.all.discard(self)
        self._connection_limiter.idle.pop(self, None)
        super().handle_websocket_upgrade()

    def evict(self) -> None:
        """Close this connection to make room for another one."""
        self._connection_limiter.count(Refused.IDLE_CONNECTION)
        if (handshake := self._connection_limiter.handshakes.pop(self, None)) is not None:
            handshake.cancel()
            return
        self._connection_limiter.all.discard(self)
        self._connection_limiter.idle.pop(self, None)
        self.transport.abort()

    def send_elsewhere(self) -> None:
        """Close the connection after its current request has been answered. This includes a request
        that has only just arrived.
        """
        if self.cycle is not None:
            self.shutdown()

    def data_received(self, data: bytes) -> None:
        """Pass data to the parser, provided that it is within the limits."""
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
        """Start a request. If it arrives before the previous one has been answered, it isn't
        accepted.
        """
        if self._answering():
            self._connection_limiter.count(Refused.PIPELINED)
            self._deaf = True
            self.cycle.keep_alive = False
        if not self._deaf:
            super().on_message_begin()
            self.scope["state"]["transport"] = self.transport

    def on_url(self, url: bytes) -> None:
        """Add a piece of the request target."""
        if not self._deaf:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header or a trailer. Trailers are discarded."""
        if not self._deaf and not self._answering():
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start processing the request, because its head is complete."""
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
        """Add a piece of the body."""
        self._pending_bytes = 0
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Record the end of a request. If the request offers an upgrade, its body hasn't been read
        yet.
        """
        if self._deaf or self._ignores_offer():
            return
        self._pending_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start the timer for the client to read the response, now that it has been written."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._set_timer(self._bounds.connections.send_timeout_s, self._closing_is_late)
        else:
            self._become_idle()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection and make sure that it really gets closed."""
        super().timeout_keep_alive_handler()
        self._set_timer(self._bounds.connections.send_timeout_s, self._closing_is_late)

    def send_400_response(self, msg: str) -> None:
        """Respond to data that isn't valid HTTP. If a response is in progress, it isn't affected.

        If a request's body is incomplete, the response hasn't been started. The request then ends
        as if the client had disconnected, and the client is sent the reason.
        """
        if self._deaf:
            return
        if not self._answering():
            self._refuse(400, InvalidArgument("not a valid HTTP request"))
        elif self.cycle.response_started:
            self.transport.abort()
        else:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._refuse(
                400, InvalidArgument("the chunks or trailers of the body are not valid HTTP")
            )

    def _parse(self, data: bytes) -> None:
        """Pass data to the parser. After an ignored offer to upgrade, a new parser is used."""
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
        """Hand the connection over, unless the WebSocket library would never respond to the
        handshake.
        """
        if any(len(name) + len(value) > MOST_FIELD_BYTES for name, value in self.headers):
            self._connection_limiter.count(Refused.HEAD_BYTES)
            what = f"a header field of the handshake has more than {MOST_FIELD_BYTES} bytes"
            self._refuse(431, InvalidArgument(what))
            return
        self.handle_websocket_upgrade()

    def _should_upgrade(self) -> bool:
        """Return whether to upgrade the request to a WebSocket. HTTP/1.0 requests are never
        upgraded.
        """
        plain_get = self.parser.get_method() == b"GET" and self.parser.get_http_version() == "1.1"
        return plain_get and super()._should_upgrade()

    def _ignores_offer(self) -> bool:
        """Return whether this head contains an offer to upgrade that has to be ignored."""
        return (
            self.parser.should_upgrade()
            and self.parser.get_method() != b"CONNECT"
            and not self._should_upgrade()
        )

    def _head_without_offer(self) -> bytes:
        """Return the head of the current request without the offer to upgrade."""
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
        """When the last bytes of an incomplete body arrived. If the body is complete, this is
        infinite.
        """
        return self._heard_at if self._answering() and self.cycle.more_body else math.inf

    def _make_room(self) -> bool:
        """Close the connection that has been idle the longest or whose body has been stalled the
        longest.

        Returns False if there is no such connection.
        """
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
        full = Unavailable(
            f"all {most} connections are in use (gateway.connections.max_connections)"
        )
        self._refuse(503, full, linger_s=0)

    def _refuse_head(self) -> None:
        self._connection_limiter.count(Refused.HEAD_BYTES)
        most = self._bounds.connections.max_head_bytes
        if self._answering():
            self.transport.abort()
            return
        status = 414 if len(self.url) > most else 431
        what = f"the request target and headers have more than {most} bytes"
        self._refuse(status, InvalidArgument(f"{what} (gateway.connections.max_head_bytes)"))

    def _head_is_late(self) -> None:
        if self._pending_bytes:
            self._connection_limiter.count(Refused.HEAD_TIME)
            timeout_s = self._bounds.connections.head_timeout_s
            self._refuse(
                408, BodyTooSlow(f"no complete request head was received within {timeout_s:g} s")
            )
        else:
            self._connection_limiter.count(Refused.IDLE_CONNECTION)
            self.transport.abort()

    def _closing_is_late(self) -> None:
        self._connection_limiter.count(Refused.SEND_TIME)
        self.transport.abort()

    def _refuse(self, status: int, error: AntiphonError, linger_s: float = LINGER_S) -> None:
        """Send a response without involving the application and then stop reading."""
        self._deaf = True
        self._connection_limiter.idle.pop(self, None)
        body = error_json(error)
        head = (
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-should-retry: {'true' if error.retryable else 'false'}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        # If the connection were closed before all data has been read, the client might not receive
        # the response.
        if linger_s:
            self.transport.write_eof()
        else:
            self.transport.close()
        self._set_timer(linger_s or LINGER_S, self.transport.abort)

    def _set_timer(self, after_s: float | None, then: Callable[[], None] | None = None) -> None:
        """Set the timer, replacing an earlier one."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if after_s is not None and then is not None:
            self._timer = self.loop.call_later(after_s, then)
