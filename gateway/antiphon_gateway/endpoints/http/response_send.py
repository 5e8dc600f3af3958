"""Code that all responses share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon_gateway.endpoints.access_log import RequestLog
from antiphon_gateway.endpoints.sending import ClientStalled, send_in_time

PIECE_BYTES = 64 << 10
"""The maximum number of bytes that are passed to a connection at once. It is so small that the
timer can tell whether a slow client is still reading.
"""


class ResponseSend:
    """The ASGI `send` function of one request or WebSocket. Endpoints can access it as
    `scope["state"]["send"]`.

    If a client doesn't read anything for `timeout_s` seconds, its connection is cut, unsent data is
    discarded, and `ClientStalled` is raised. If the request has an `entry` in the access log, the
    request ID and the ignored fields are added to the response headers.
    """

    def __init__(
        self,
        send: Send,
        transport: asyncio.Transport,
        timeout_s: float,
        stalled: Callable[[], None],
    ) -> None:
        self.entry: RequestLog | None = None
        self.complete = False
        """Whether the response is complete."""
        self._send = send
        self._transport = transport
        self._timeout_s = timeout_s
        self._stalled = stalled

    async def __call__(self, message: Message) -> None:
        """Send a message. Large bodies are split into pieces. Raises `ClientStalled` if the client
        isn't reading.
        """
        kind = message["type"]
        if kind == "http.response.start" and self.entry is not None:
            message = _marked(message, self.entry)
        self.complete = kind == "http.response.body" and not message.get("more_body")
        for piece in pieces(message):
            try:
                await send_in_time(self._send(piece), self._timeout_s)
            except ClientStalled:
                if not self._transport.is_closing():
                    self._stalled()
                self._transport.abort()
                raise


class BoundedSending:
    """Middleware that provides each request with a `ResponseSend`. The connection must be available
    as `scope["state"]["transport"]`.
    """

    def __init__(self, app: ASGIApp, timeout_s: float, stalled: Callable[[], None]) -> None:
        self._app = app
        self._timeout_s = timeout_s
        self._stalled = stalled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        state = scope["state"]
        own = ResponseSend(send, state["transport"], self._timeout_s, self._stalled)
        state["send"] = own
        await self._app(scope, receive, own)


def pieces(message: Message) -> Iterator[Message]:
    """Yield the message. If its body is large, it is split into pieces."""
    body = message.get("body", b"")
    if len(body) <= PIECE_BYTES:
        yield message
        return
    for start in range(0, len(body), PIECE_BYTES):
        end = start + PIECE_BYTES
        more = end < len(body) or message.get("more_body", False)
        yield {"type": message["type"], "body": body[start:end], "more_body": more}


def _marked(message: Message, entry: RequestLog) -> Message:
    """Record the start of a response in its log entry and return the message with additional
    headers.
    """
    entry.status = str(message["status"])
    marks = [(b"x-request-id", entry.request_id.encode())]
    if ignored := entry.ignored_fields:
        marks.append((b"x-antiphon-ignored", ", ".join(ignored).encode()))
    return {**message, "headers": [*message["headers"], *marks]}
