"""The port at which an orchestrator's probes ask whether a stage is ready, and alive.

A port of its own, without encryption, since Kubernetes' gRPC probes know none; and answered
by the process's event loop, so that a loop that hangs answers nothing.
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
    """Answer `grpc.health.v1` until the block ends; its "host:port", empty without a `listen`.

    Raises `InvalidArgument` for a wrong address, `Unavailable` for one that cannot be had.
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
