"""Reads request bodies and detects when a client has disconnected."""

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
"""How many bytes of each body are exempt from the memory limit. Thanks to this, small requests
succeed even if a client uses up the limit with large ones.

The total is limited by the number of connections.
"""


class TakesBody(Protocol):
    """Receives a body piece by piece."""

    def add(self, piece: bytes) -> None:
        """Add the next piece. Raises `AntiphonError` if it is rejected."""
        ...


async def read_body(
    scope: Scope,
    receive: Receive,
    config: GatewayConfig,
    holding: ByteLease,
    clock: asyncio.Timeout,
    body: TakesBody,
) -> None:
    """Read the whole body into `body` before `clock` expires. The memory it uses is taken from
    `holding`.

    Raises `BodyTooLarge`, `BodyTooSlow`, `BudgetExceeded` or `EncodedBody` if the body isn't
    acceptable, `Cancelled` if the client disconnects, and the errors of `body`.
    """
    headers = dict(scope["headers"])
    if headers.get(b"content-encoding", b"").strip().lower() not in (b"", b"identity"):
        raise EncodedBody(
            "content-encoding: compressed bodies are not supported; send the body uncompressed"
        )
    length = headers.get(b"content-length", b"0")
    if not length.isdigit():
        raise InvalidArgument("content-length: must be a number")
    if int(length) > config.limits.max_body_bytes:
        raise _too_large(f"{int(length)} bytes", config)
    size = 0
    try:
        async with clock:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Cancelled("the client disconnected while it was sending the request")
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
            f"the body was not received within {config.limits.body_timeout_s:g} s "
            "(gateway.limits.body_timeout_s)"
        ) from None


def _too_large(size: str, config: GatewayConfig) -> BodyTooLarge:
    most = config.limits.max_body_bytes
    return BodyTooLarge(
        f"the body has {size}; the maximum is {most} (gateway.limits.max_body_bytes)"
    )


async def while_connected(
    receive: Receive, send: ResponseSend, *works: Coroutine[None, None, None]
) -> None:
    """Run the first coroutine, which responds through `send`, while the others run concurrently.

    The others are cancelled when the response is complete or an error occurs. In the latter case,
    the error is raised. If the client disconnects before the response is complete, all coroutines
    are cancelled and `Cancelled` is raised. Cancelling this call cancels all coroutines and waits
    for them to end.
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
        raise Cancelled("the client has disconnected")
    try:
        for each in over:
            each.result()
    finally:
        # The task refers to its error. The error's traceback refers to this frame, and therefore to
        # the request.
        del working, over, each


async def _wait_disconnected(receive: Receive) -> None:
    """Wait until the client has disconnected or has received its whole response."""
    while (await receive())["type"] != "http.disconnect":
        pass
