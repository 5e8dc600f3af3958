"""A connection that was upgraded to a WebSocket: uvicorn's protocol with a bound that it lacks."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame

MOST_FRAGMENTS = 1024
"""Of one message. Its bytes are bounded, but fragments may be empty."""


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """Is in `every` while it is open. `scope["state"]["transport"]` is the connection's."""

    def __init__(
        self,
        every: set[BoundedWebSocket],
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._every = every

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it in."""
        self._every.add(self)
        self.app_state = {**self.app_state, "transport": transport}
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._every.discard(self)
        super().connection_lost(exc)

    def handle_cont(self, event: Frame) -> None:
        """A further fragment of a message."""
        if len(self.frames) < MOST_FRAGMENTS:
            super().handle_cont(event)
            return
        self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"more than {MOST_FRAGMENTS} fragments")
        self.handle_parser_exception()
