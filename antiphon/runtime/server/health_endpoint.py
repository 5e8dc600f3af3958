"""The health port, which answers the probes of an orchestrator.

It is a separate port without encryption, because Kubernetes' gRPC probes do not support TLS. The
process's event loop answers the probes, so a blocked event loop makes them fail.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from grpc_health.v1 import health_pb2_grpc

from antiphon.transport.channel import SERVER_OPTIONS
from antiphon.transport.listening import listen_at


@asynccontextmanager
async def health_endpoint(
    listen: str, probes: health_pb2_grpc.HealthServicer
) -> AsyncIterator[str]:
    """Serve `grpc.health.v1` inside the context. Yields the address as "host:port", or an empty
    string if `listen` is empty.

    Raises `InvalidArgument` if the address is invalid, and `Unavailable` if it cannot be bound.
    """
    if not listen:
        yield ""
        return
    server = grpc.aio.server(options=SERVER_OPTIONS)
    health_pb2_grpc.add_HealthServicer_to_server(probes, server)
    address = listen_at(server, listen, field="health_listen")
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)
