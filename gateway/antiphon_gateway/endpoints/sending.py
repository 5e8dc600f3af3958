"""Sending to a client that may be slow, bounded in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.errors import DeadlineExceeded

PIECE_BYTES = 64 << 10
"""As much goes to a connection at once; so the clock sees a client that takes a little."""


class ClientStalled(DeadlineExceeded):
    """The client is connected and takes nothing."""


async def send_in_time(sending: Awaitable[None], timeout_s: float) -> None:
    """Wait for a message to be taken. Raises `ClientStalled` when it is not in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await sending
    except TimeoutError:
        raise ClientStalled(f"the client has taken nothing for {timeout_s:g} s") from None


class BoundedSending:
    """Everything that the application sends goes through here, whatever endpoint it is from.

    A client that takes nothing for `timeout_s` has its connection cut, with what lies in it
    unsent, and the endpoint gets `ClientStalled`. `scope["state"]["transport"]` is the
    connection's.
    """

    def __init__(self, app: ASGIApp, timeout_s: float, stalled: Callable[[], None]) -> None:
        self._app = app
        self._timeout_s = timeout_s
        self._stalled = stalled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        transport: asyncio.Transport = scope["state"]["transport"]

        async def send_bounded(message: Message) -> None:
            for piece in pieces(message):
                try:
                    await send_in_time(send(piece), self._timeout_s)
                except ClientStalled:
                    if not transport.is_closing():
                        self._stalled()
                    transport.abort()
                    raise

        await self._app(scope, receive, send_bounded)


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
