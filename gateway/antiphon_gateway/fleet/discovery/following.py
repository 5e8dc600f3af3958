"""Taking in what a discovery tells, whatever fails: nobody else would notice that it has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

from antiphon_gateway.fleet.discovery.replica_endpoint import Discovery, Endpoint

log = logging.getLogger("gateway")


async def follow(
    discovery: Discovery, take: Callable[[frozenset[Endpoint]], None], pause_s: float
) -> None:
    """Have `take` told of every set, for ever. After a failure of either the watch begins anew."""
    while True:
        watch = discovery.watch()
        try:
            async for endpoints in watch:
                take(endpoints)
            log.error("discovery has ended; it begins anew")
        except Exception:
            log.exception("discovery failed; what is known holds, and it begins anew")
        finally:
            if isinstance(watch, AsyncGenerator):
                await watch.aclose()
        await asyncio.sleep(pause_s)
