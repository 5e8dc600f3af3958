"""What every response goes through on its way to the client, whatever its endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon_gateway.endpoints.access_log import RequestLog
from antiphon_gateway.endpoints.sending import ClientStalled, send_in_time

PIECE_BYTES = 64 << 10
"""As much goes to a connection at once; so the clock sees a client that takes a little."""


class ResponseSend:
    """The ASGI `send` of one request or WebSocket; its endpoint has it at `scope["state"]["send"]`.

    Sends in bounded time: a client that takes nothing for `timeout_s` has its connection cut, with
    what lies in it unsent, and the endpoint gets `ClientStalled`. A response has the request's id
    and its ignored fields as headers if the request has an `entry` in the access log.
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
        """Whether the last message completes a response."""
        self._send = send
        self._transport = transport
        self._timeout_s = timeout_s
        self._stalled = stalled

    async def __call__(self, message: Message) -> None:
        """Send a message, a large body in pieces. Raises `ClientStalled`."""
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
    """Gives each request a `ResponseSend`; `scope["state"]["transport"]` is the connection's."""

    def __init__(self, app: ASGIApp, timeout_s: float, stalled: Callable[[], None]) -> None:
        self._app = app
        self._timeout_s = timeout_s
        self._stalled = stalled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        state = scope["state"]
        own = ResponseSend(send, state["transport"], self._timeout_s, self._stalled)
        state["send"] = own
        await self._app(scope, receive, own)


def pieces(message: Message) -> Iterator[Message]:
    """The message; a large body in pieces."""
    body = message.get("body", b"")
    if len(body) <= PIECE_BYTES:
        yield message
        return
    for start in range(0, len(body), PIECE_BYTES):
        end = start + PIECE_BYTES
        more = end < len(body) or message.get("more_body", False)
        yield {"type": message["type"], "body": body[start:end], "more_body": more}


def _marked(message: Message, entry: RequestLog) -> Message:
    """The beginning of a response, noted in the request's entry, with its headers."""
    entry.status = str(message["status"])
    marks = [(b"x-request-id", entry.request_id.encode())]
    if ignored := entry.ignored_fields:
        marks.append((b"x-antiphon-ignored", ", ".join(ignored).encode()))
    return {**message, "headers": [*message["headers"], *marks]}
