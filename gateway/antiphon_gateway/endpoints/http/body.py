"""Reading a request and noticing that its client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Protocol

from starlette.types import Receive, Scope

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import Cancelled, InvalidArgument
from antiphon_gateway.admission.byte_budget import ByteLease, eviction
from antiphon_gateway.endpoints.http.errors import BodyTooLarge, BodyTooSlow, EncodedBody
from antiphon_gateway.endpoints.http.response_send import ResponseSend

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

    Raises `BodyTooLarge`, `BodyTooSlow`, `BudgetExceeded`, `EncodedBody`, `Cancelled` when the
    client goes away, and what `body` raises.
    """
    headers = dict(scope["headers"])
    if headers.get(b"content-encoding", b"").strip().lower() not in (b"", b"identity"):
        raise EncodedBody("content-encoding: bodies are read as they are; send it uncompressed")
    length = headers.get(b"content-length", b"0")
    if not length.isdigit():
        raise InvalidArgument("content-length: is not a number")
    if int(length) > config.limits.max_body_bytes:
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
                if size > config.limits.max_body_bytes:
                    raise _too_large(f"more than {config.limits.max_body_bytes} bytes", config)
                body.add(piece)
                holding.moved(max(0, size - FREE_BYTES))
                if not message.get("more_body", False):
                    holding.keep()
                    return
    except TimeoutError:
        if holding.evicted:
            raise eviction() from None
        raise BodyTooSlow(
            f"the body did not come within {config.limits.body_timeout_s:g} s; "
            "gateway.limits.body_timeout_s sets the bound"
        ) from None


def _too_large(size: str, config: GatewayConfig) -> BodyTooLarge:
    most = config.limits.max_body_bytes
    return BodyTooLarge(
        f"the body has {size}; gateway.limits.max_body_bytes sets the bound: {most}"
    )


async def while_connected(
    receive: Receive, send: ResponseSend, *works: Coroutine[None, None, None]
) -> None:
    """Do the first work, which responds through `send`, with the others.

    The others end when the response is complete, or with an error, which is raised. When the
    client goes away before the response is complete, cancel all and raise `Cancelled`. Cancelling
    this cancels them and waits for them.
    """
    working = [asyncio.create_task(each) for each in works]
    gone = asyncio.create_task(_wait_disconnected(receive))
    try:
        await asyncio.wait((*working, gone), return_when=asyncio.FIRST_COMPLETED)
        if send.complete:
            await asyncio.wait(working[:1])
        over = [each for each in working if each.done()]
    finally:
        for each in (gone, *working):
            each.cancel()
        await asyncio.gather(gone, *working, return_exceptions=True)
    if not over:
        raise Cancelled("the client went away")
    try:
        for each in over:
            each.result()
    finally:
        # The task holds its error, whose traceback holds this frame, and with it the request.
        del working, over, each


async def _wait_disconnected(receive: Receive) -> None:
    """Return when the client has closed its connection, or has its whole response."""
    while (await receive())["type"] != "http.disconnect":
        pass
