"""Sends data to clients that may be slow, with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from antiphon.deadlines.begun import Begun
from antiphon.errors import DeadlineExceeded


class ClientStalled(DeadlineExceeded):
    """The client is connected but isn't reading."""


async def send_in_time(sending: Awaitable[None], timeout_s: float) -> None:
    """Wait until a message has been sent. Raises `ClientStalled` if this takes too long."""
    begun = Begun(sending)
    if begun.done:
        return
    try:
        async with asyncio.timeout(timeout_s):
            await begun
    except TimeoutError:
        raise ClientStalled(f"the client has not read anything for {timeout_s:g} s") from None
