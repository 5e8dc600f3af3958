"""A WebSocket connection with limits that uvicorn's protocol doesn't have.

uvicorn answers the pings of a client that isn't reading, accepts any number of empty fragments, and
waits forever for a client to read the remaining data when it closes a connection. If a text message
isn't valid UTF-8, it logs a traceback. This module cuts the connection of a client that sends pings
but doesn't read. It also limits the number of fragments and the time for closing a connection. If a
text message isn't valid UTF-8, the connection is closed and nothing is logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.types import Scope
from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame

MOST_FRAGMENTS = 1024
"""The maximum number of fragments in a message. The size limit isn't sufficient, because fragments
can be empty.
"""


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket with limits. While it is open, it is in `every`. Applications can access it as
    `scope["state"]["transport"]`.

    If it takes more than `closing_s` seconds to close the connection, the connection is cut.
    """

    def __init__(
        self,
        every: set[BoundedWebSocket],
        closing_s: float,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._every = every
        self._closing_s = closing_s
        self._cut: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add the connection to the open ones."""
        self._every.add(self)
        self.app_state = {**self.app_state, "transport": transport}
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the open ones."""
        self._every.discard(self)
        if self._cut is not None:
            self._cut.cancel()
        super().connection_lost(exc)

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message from the application.

        If the application refuses a handshake with a response, uvicorn wrongly considers the
        response missing and logs an error.
        """
        await super().send(message)
        self.handshake_complete = self.handshake_complete or self.close_sent

    def has_message(self) -> bool:
        """Return whether there is a message that the application hasn't received yet."""
        return not self.queue.empty()

    def handle_ping(self) -> None:
        """Answer a ping, provided that the client is reading."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.transport.abort()

    def handle_cont(self, event: Frame) -> None:
        """Add another fragment to the current message."""
        if len(self.frames) < MOST_FRAGMENTS:
            super().handle_cont(event)
            return
        self.conn.fail(
            CloseCode.MESSAGE_TOO_BIG, f"the message has more than {MOST_FRAGMENTS} fragments"
        )
        self.handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        """Pass a complete message to the application. If the message weren't valid UTF-8, uvicorn
        would log a traceback.
        """
        if self.curr_msg_data_type == "bytes" or _is_utf8(self.frames):
            super().send_receive_event_to_app()
            return
        self.conn.fail(CloseCode.INVALID_DATA, "not UTF-8")
        self.handle_parser_exception()

    def handle_close(self, event: Frame) -> None:
        """Handle a close frame from the client."""
        super().handle_close(event)
        self._end_in_time()

    def handle_parser_exception(self) -> None:
        """Close the connection, because the data is invalid or too large."""
        super().handle_parser_exception()
        self._end_in_time()

    def keepalive_timeout(self) -> None:
        """Close the connection, because a ping wasn't answered."""
        super().keepalive_timeout()
        self._end_in_time()

    def eof_received(self) -> None:
        """Handle the end of the data from the client."""
        super().eof_received()
        self._end_in_time()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """Clean up after the application has finished."""
        super().on_task_complete(task)
        self._end_in_time()

    def _end_in_time(self) -> None:
        if self._cut is None and not self.disconnected:
            self._cut = self.loop.call_later(self._closing_s, self.transport.abort)


def websocket_of(scope: Scope) -> BoundedWebSocket:
    """Return the connection of an application's scope."""
    protocol = scope["state"]["transport"].get_protocol()
    assert isinstance(protocol, BoundedWebSocket)
    return protocol


def _is_utf8(frames: Sequence[bytes]) -> bool:
    """Return whether the fragments form valid UTF-8. There is a fast path for ASCII text, such as
    audio in base64.
    """
    if all(map(bytes.isascii, frames)):
        return True
    try:
        b"".join(frames).decode()
    except UnicodeDecodeError:
        return False
    return True
