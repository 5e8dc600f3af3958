"""Keeps following a discovery, even after errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

from antiphon_gateway.fleet.discovery.replica_endpoint import Discovery, Endpoint

log = logging.getLogger("gateway")


async def follow(
    discovery: Discovery, take: Callable[[frozenset[Endpoint]], None], pause_s: float
) -> None:
    """Call `take` with each new set of endpoints. This never returns. If the discovery or `take`
    raises an error, the discovery is watched again from the start.
    """
    while True:
        watch = discovery.watch()
        try:
            async for endpoints in watch:
                take(endpoints)
            log.error("discovery has ended; restarting it")
        except Exception:
            log.exception("discovery failed; keeping the known replicas and restarting it")
        finally:
            if isinstance(watch, AsyncGenerator):
                await watch.aclose()
        await asyncio.sleep(pause_s)
