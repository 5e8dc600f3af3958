"""Where a process listens: the gRPC server's port, and its address as others write it."""

from __future__ import annotations

import asyncio
import logging

import grpc

from antiphon.deployment.address import host_and_port, joined
from antiphon.errors import Unavailable

log = logging.getLogger(__name__)


def listen_at(
    server: grpc.aio.Server,
    address: str,
    *,
    field: str,
    credentials: grpc.ServerCredentials | None = None,
) -> str:
    """Have a server listen on the "host:port" of the setting `field`; what it got, where port 0
    is any that is free. With TLS if there are credentials.

    Raises `InvalidArgument` for a wrong address, `Unavailable` for one that cannot be had.
    """
    host, _ = host_and_port(address, field=field)
    try:
        port = (
            server.add_insecure_port(address)
            if credentials is None
            else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:
        raise Unavailable(
            f"{field}: cannot listen on {address}; choose another port, or stop what listens there",
            field=field,
        ) from error
    return joined(host, port)


async def wait_closed(server: grpc.aio.Server) -> None:
    """Return when a server has stopped, be it by a fault of its own."""
    # Whoever cancels gRPC's wait itself has it forget that it stops.
    ending = asyncio.ensure_future(server.wait_for_termination())
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        raise
    except Exception:
        log.exception("a gRPC server has failed")
