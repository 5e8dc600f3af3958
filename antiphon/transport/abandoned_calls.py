"""Frees the calls of abandoned connections.

gRPC closes a connection when the last call on it has been freed. This can be long after the call
and its channel were closed, because gRPC's Python calls are part of reference cycles that only the
garbage collector frees. Without help, an otherwise idle process kept such connections open for
minutes, together with the other end and everything in between.
"""

from __future__ import annotations

import asyncio
import gc
import weakref

FREED_WITHIN_S = 5.0
"""The time, in seconds, between the abandonment of a connection and the run of the garbage
collector. This is also the shortest interval between two runs. A run takes little time, because the
objects that exist after startup are excluded (`antiphon.transport.heap`).
"""

_due: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def free_soon() -> None:
    """Free the calls of a connection that has just been abandoned, in `FREED_WITHIN_S` seconds."""
    loop = asyncio.get_running_loop()
    if loop not in _due:
        _due.add(loop)
        loop.call_later(FREED_WITHIN_S, _free, loop)


def _free(loop: asyncio.AbstractEventLoop) -> None:
    _due.discard(loop)
    gc.collect()
