"""A connection that was upgraded to a WebSocket: uvicorn's protocol with bounds that it lacks.

uvicorn answers pings of a client that reads nothing, takes any number of empty fragments, and
waits for ever for a client to take what is unsent when it closes. It logs a traceback for text
that is not UTF-8. Here a client that does not read has its pings unanswered and its connection cut,
fragments have a number, and a connection that is closing has a time for it. Text that is not UTF-8
closes the connection and logs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame

MOST_FRAGMENTS = 1024
"""Of one message. Its bytes are bounded, but fragments may be empty."""


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """Is in `every` while it is open. `scope["state"]["transport"]` is the connection's.

    A connection that is closing is cut after `closing_s`.
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
        """Count it in."""
        self._every.add(self)
        self.app_state = {**self.app_state, "transport": transport}
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._every.discard(self)
        if self._cut is not None:
            self._cut.cancel()
        super().connection_lost(exc)

    async def send(self, message: ASGISendEvent) -> None:
        """Send the application's message.

        uvicorn treats a handshake that was refused with a response as one without a response, and
        logs an error.
        """
        await super().send(message)
        self.handshake_complete = self.handshake_complete or self.close_sent

    def handle_ping(self) -> None:
        """Answer, unless the client takes nothing."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.transport.abort()

    def handle_cont(self, event: Frame) -> None:
        """A further fragment of a message."""
        if len(self.frames) < MOST_FRAGMENTS:
            super().handle_cont(event)
            return
        self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"more than {MOST_FRAGMENTS} fragments")
        self.handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        """A whole message. For a text that is not UTF-8 uvicorn logs a traceback."""
        if self.curr_msg_data_type == "bytes" or _is_utf8(self.frames):
            super().send_receive_event_to_app()
            return
        self.conn.fail(CloseCode.INVALID_DATA, "not UTF-8")
        self.handle_parser_exception()

    def handle_close(self, event: Frame) -> None:
        """The client closes."""
        super().handle_close(event)
        self._end_in_time()

    def handle_parser_exception(self) -> None:
        """What came is no WebSocket, or too large."""
        super().handle_parser_exception()
        self._end_in_time()

    def keepalive_timeout(self) -> None:
        """A ping was not answered."""
        super().keepalive_timeout()
        self._end_in_time()

    def eof_received(self) -> None:
        """The client sends no more."""
        super().eof_received()
        self._end_in_time()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """The application is done with it."""
        super().on_task_complete(task)
        self._end_in_time()

    def _end_in_time(self) -> None:
        if self._cut is None and not self.disconnected:
            self._cut = self.loop.call_later(self._closing_s, self.transport.abort)


def _is_utf8(frames: Sequence[bytes]) -> bool:
    """Whether fragments together are UTF-8; ASCII, such as audio in base64, is found fast."""
    if all(map(bytes.isascii, frames)):
        return True
    try:
        b"".join(frames).decode()
    except UnicodeDecodeError:
        return False
    return True
