"""Blocking work on a thread, of which nothing is left when nobody waits for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")


async def made_on_thread(make: Callable[[], Made], drop: Callable[[Made], None]) -> Made:
    """What `make` returns, on a thread; raises what it raises.

    A thread cannot be interrupted: after a cancellation what it makes goes to `drop`, on
    the loop, as soon as it is there.
    """
    loop = asyncio.get_running_loop()
    making = loop.run_in_executor(None, make)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(lambda made: _drop(made, drop))
        raise


def _drop(made: asyncio.Future[Made], drop: Callable[[Made], None]) -> None:
    if not made.cancelled() and made.exception() is None:
        drop(made.result())
