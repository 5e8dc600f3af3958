"""The HTTP endpoint for a stage's metrics, which runs on its own threads.

It exports the metrics of the stage together with the process's default registry. This registry
contains CPU time, memory, open files, and the metrics of libraries in this process, such as vLLM.
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
    """Serve `GET /metrics` for the duration of the context. Yields the address as "host:port", or
    an empty string if `listen` is empty.

    Raises `InvalidArgument` if the address is invalid, and `Unavailable` if the port can't be
    bound.
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
        # This resolves the host name, which can block.
        server, thread = await asyncio.to_thread(start_http_server, port, host, registry)
    except OSError as error:
        raise Unavailable(f"{FIELD}: {listen}: {error.strerror}", field=FIELD) from error
    try:
        yield joined(host, server.server_port)
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await asyncio.to_thread(thread.join)
