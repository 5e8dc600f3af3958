"""Sending to a client that may be slow, bounded in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from antiphon.errors import DeadlineExceeded


class ClientStalled(DeadlineExceeded):
    """The client is connected and takes nothing."""


async def send_in_time(sending: Awaitable[None], timeout_s: float) -> None:
    """Wait for a message to be taken. Raises `ClientStalled` when it is not in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await sending
    except TimeoutError:
        raise ClientStalled(f"the client has taken nothing for {timeout_s:g} s") from None
