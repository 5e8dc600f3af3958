"""Reading a request and noticing that its client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from starlette.types import Receive, Scope

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


async def while_connected(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Do the work; cancel it when the client goes away, and then raise `Cancelled`.

    Cancelling this cancels the work and waits for it.
    """
    working = asyncio.create_task(work)
    gone = asyncio.create_task(_wait_disconnected(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        finished = working.done()
    finally:
        gone.cancel()
        await working
        await asyncio.gather(working, gone, return_exceptions=True)
    if not finished:
        raise Cancelled("the client went away")
    working.result()


async def _wait_disconnected(receive: Receive) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
