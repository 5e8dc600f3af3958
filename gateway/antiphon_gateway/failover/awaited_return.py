"""Waits for a stage that has just been lost, before a request is refused for lack of replicas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from antiphon.errors import Unavailable
from antiphon_gateway.fleet.fleet import Fleet

Found = TypeVar("Found")


async def awaited_return(fleet: Fleet, find: Callable[[], Found], most_s: float) -> Found:
    """Return the result of `find`, which requires that stages have replicas.

    If a broken connection was the only way to a stage, the stage is available again within
    milliseconds. For this reason, `find` is called again after each change of the fleet, until the
    missing stage has been unavailable for `most_s` seconds. Raises the errors of `find`, which are
    not delayed if the stage has been missing for longer or has stopped serving on its own. If
    stages are lost repeatedly, the wait still takes at most `most_s` seconds.
    """
    until = time.monotonic() + most_s
    while True:
        changed = fleet.changes.next
        try:
            return find()
        except Unavailable as error:
            left_s = min(fleet.lost_at(error.stage) + most_s, until) - time.monotonic()
            if left_s <= 0:
                raise
        try:
            await asyncio.wait_for(changed.wait(), left_s)
        except TimeoutError:
            continue
