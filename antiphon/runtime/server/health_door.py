"""The port at which an orchestrator's probes ask whether a stage is ready, and alive.

A port of its own, without encryption, since Kubernetes' gRPC probes know none; and answered
by the process's event loop, so that a loop that hangs answers nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from grpc_health.v1 import health_pb2_grpc

from antiphon.deployment.address import host_and_port
from antiphon.errors import Unavailable
from antiphon.runtime.server.health import Health
from antiphon.transport.channel import SERVER_OPTIONS

FIELD = "health_listen"


@asynccontextmanager
async def health_door(listen: str, health: Health) -> AsyncIterator[str]:
    """Answer `grpc.health.v1` until the block ends; its "host:port", empty without a `listen`.

    Raises `InvalidArgument` for a wrong address, `Unavailable` for one that cannot be had.
    """
    if not listen:
        yield ""
        return
    host_and_port(listen, field=FIELD)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    health_pb2_grpc.add_HealthServicer_to_server(health.probes, server)
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise Unavailable(
            f"{FIELD}: cannot listen on {listen}; choose another port, or stop what listens there",
            field=FIELD,
        ) from error
    await server.start()
    try:
        yield f"{listen.rpartition(':')[0]}:{port}"
    finally:
        await server.stop(None)
