"""The messages of a WebSocket client."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Receive


class IncomingMessages:
    """Reads a client's messages as text. Binary messages are decoded as UTF-8.

    `has_message` returns whether `receive` would return without waiting. Audio arrives in many
    small messages. They are read directly from the server, without Starlette's check of their
    types.
    """

    def __init__(self, receive: Receive, has_message: Callable[[], bool]) -> None:
        self.left = False
        """Whether the client has disconnected."""
        self._receive = receive
        self._has_message = has_message
        self._returned: str | None = None

    async def read(self) -> str | None:
        """Wait for the next message. Returns None once the client has disconnected."""
        if (returned := self._returned) is not None:
            self._returned = None
            return returned
        if self.left:
            return None
        message = await self._receive()
        if message["type"] != "websocket.receive":
            self.left = True
            return None
        data: str | None = message.get("text")
        return message["bytes"].decode(errors="replace") if data is None else data

    def arrived(self) -> bool:
        """Return whether another message has arrived, so that `read` doesn't wait for it."""
        return self._has_message()

    def put_back(self, data: str) -> None:
        """Make a message that was read the next one again."""
        self._returned = data
