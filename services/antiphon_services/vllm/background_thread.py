"""Runs slow work on a thread that doesn't delay the exit of the process.

The interpreter joins executor threads before it exits. If an executor were used, the exit would
have to wait for vLLM to start, which takes minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def on_background_thread(name: str, work: Callable[[], T]) -> T:
    """Return the result of `work`, or raise its error. If this call is cancelled, the work
    continues in the background, but its result is dropped.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            outcome = partial(_fulfil, done, work())
        except BaseException as error:
            outcome = partial(_break, done, error)
        # The event loop may already be closed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done


def _fulfil(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _break(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
