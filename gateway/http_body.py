"""Reading a request and noticing that its client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from starlette.types import Message, Receive, Scope, Send

from antiphon.errors import Cancelled, InvalidArgument
from gateway.http_errors import BodyTooLarge


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """The whole body. Raises `BodyTooLarge`, `Cancelled` when the client goes away first."""
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if not length.isdigit():
        raise InvalidArgument("content-length: is not a number")
    if int(length) > limit_bytes:
        raise BodyTooLarge(f"the body has {int(length)} bytes; the most is {limit_bytes}")
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("the client went away while it sent its request")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit_bytes:
            raise BodyTooLarge(f"the body has more than {limit_bytes} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)


async def while_connected(
    receive: Receive, send: Send, work: Callable[[Send], Coroutine[None, None, None]]
) -> None:
    """Do the work, which responds through the `Send` that it is given.

    When the client goes away before the response is complete, cancel the work and
    raise `Cancelled`. Cancelling this cancels the work and waits for it.
    """
    responded = False

    async def send_on(message: Message) -> None:
        nonlocal responded
        responded = message["type"] == "http.response.body" and not message.get("more_body")
        await send(message)

    working = asyncio.create_task(work(send_on))
    gone = asyncio.create_task(_wait_disconnected(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if responded:
            await asyncio.wait((working,))
        finished = working.done()
    finally:
        gone.cancel()
        working.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)
    if not finished:
        raise Cancelled("the client went away")
    try:
        working.result()
    finally:
        # The task holds its error, whose traceback holds this frame, and with it the request.
        del working


async def _wait_disconnected(receive: Receive) -> None:
    """Return when the client has closed its connection, or has its whole response."""
    while (await receive())["type"] != "http.disconnect":
        pass
