"""The HTTP endpoint at which a stage's series are read, on threads of its own.

The page has the stage's series and those of the process's default registry: CPU time, memory
and open files, and what a library within this process measures, as vLLM does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from antiphon.deployment.address import host_and_port, joined
from antiphon.errors import Unavailable
from antiphon.transport.listening import listen_hosts

FIELD = "metrics_listen"


@asynccontextmanager
async def metrics_endpoint(listen: str, series: Collector) -> AsyncIterator[str]:
    """Serve `GET /metrics` until the block ends; its "host:port", empty without a `listen`.

    Raises `InvalidArgument` for a wrong address, `Unavailable` for one that cannot be had.
    """
    if not listen:
        yield ""
        return
    named, port = host_and_port(listen, field=FIELD)
    host = listen_hosts(named)[0]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(series)
    registry.register(REGISTRY)
    try:
        # It looks its host up, which may take a while.
        server, thread = await asyncio.to_thread(start_http_server, port, host, registry)
    except OSError as error:
        raise Unavailable(f"{FIELD}: {listen}: {error.strerror}", field=FIELD) from error
    try:
        yield joined(host, server.server_port)
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await asyncio.to_thread(thread.join)
