"""Serves the health port, which answers an orchestrator's probes.

It is separate from the main port and unencrypted, because Kubernetes' gRPC probes don't support
TLS. Probes are answered on the event loop of the process, so they fail if the event loop is
blocked.
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
    """Serve `grpc.health.v1` for the duration of the context. Yields the address as "host:port", or
    an empty string if `listen` is empty.

    Raises `InvalidArgument` if the address is invalid, and `Unavailable` if the port can't be
    bound.
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
