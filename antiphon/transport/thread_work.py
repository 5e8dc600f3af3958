"""Runs blocking work on a thread. If the caller is cancelled, the result is thrown away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")


async def made_on_thread(make: Callable[[], Made], drop: Callable[[Made], None]) -> Made:
    """Call `make` on a thread and return its result. Any errors that it raises are raised here as
    well.

    A thread can't be interrupted. If this call is cancelled, the result is passed to `drop` on the
    event loop as soon as the thread is done.
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
