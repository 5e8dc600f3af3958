"""Reading a request and noticing that its client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

from starlette.types import Message, Receive, Scope, Send

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import Cancelled, InvalidArgument
from gateway.byte_budget import ByteLease, eviction
from gateway.doors.http.errors import BodyTooLarge, BodyTooSlow

FREE_BYTES = 64 << 10
"""So much of a body takes no room: few words get through whoever fills it with large ones.

The bound on connections bounds them together.
"""


class TakesBody(Protocol):
    """What a body is read into, piece by piece."""

    def add(self, piece: bytes) -> None:
        """Take the next piece. Raises `AntiphonError` for one that will not do."""
        ...


async def read_body(
    scope: Scope,
    receive: Receive,
    config: GatewayConfig,
    holding: ByteLease,
    clock: asyncio.Timeout,
    body: TakesBody,
) -> None:
    """Have `body` take all of it, which takes bytes of `holding`, before `clock` runs out.

    Raises `BodyTooLarge`, `BodyTooSlow`, `BudgetExceeded`, `Cancelled` when the client goes away,
    and what `body` raises.
    """
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if not length.isdigit():
        raise InvalidArgument("content-length: is not a number")
    if int(length) > config.max_body_bytes:
        raise _too_large(f"{int(length)} bytes", config)
    size = 0
    try:
        async with clock:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Cancelled("the client went away while it sent its request")
                piece = message.get("body", b"")
                size += len(piece)
                if size > config.max_body_bytes:
                    raise _too_large(f"more than {config.max_body_bytes} bytes", config)
                body.add(piece)
                holding.moved(max(0, size - FREE_BYTES))
                if not message.get("more_body", False):
                    holding.keep()
                    return
    except TimeoutError:
        if holding.evicted:
            raise eviction() from None
        raise BodyTooSlow(
            f"the body did not come within {config.body_timeout_s:g} s; "
            "gateway.body_timeout_s sets the bound"
        ) from None


def _too_large(size: str, config: GatewayConfig) -> BodyTooLarge:
    most = config.max_body_bytes
    return BodyTooLarge(f"the body has {size}; gateway.max_body_bytes sets the bound: {most}")


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
