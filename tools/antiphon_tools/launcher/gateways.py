"""Several gateway processes on one host, which serve the same ports.

To users, they appear as a single gateway, so limits on totals are split among the processes. They
are split evenly, because the kernel distributes connections evenly. Limits per request or per
connection stay as they are.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from antiphon.deployment.address import host_and_port, joined
from antiphon.deployment.environment import expanded
from antiphon.deployment.schema import Deployment
from antiphon.errors import InvalidArgument, Unavailable
from antiphon.transport.listening import reserve_port
from antiphon_tools.launcher.plan import check_shared, with_gateway

MAX_GATEWAYS = 64
METRICS_LISTEN = "127.0.0.1:0"
DIVIDED: Mapping[str, tuple[str, ...]] = {
    "queue": ("max_calls", "max_waiting"),
    "limits": ("max_memory_bytes",),
    "connections": (
        "max_connections",
        "max_grpc_connections",
        "max_grpc_connections_per_address",
    ),
    "conversations": ("max_conversations",),
    "failover": ("failovers_per_minute",),
    "media": ("decoder_processes", "encoder_threads"),
}
"""The limits on totals, which are split among the gateways and rounded up."""
BODIES_IN_MEMORY = 4
"""A gateway's memory must be at least this many times the size of the largest body, because uploads
can use only a quarter of it.
"""


def check_count(count: int) -> None:
    """Raise `InvalidArgument` if this isn't a valid number of gateways."""
    if not 1 <= count <= MAX_GATEWAYS:
        raise InvalidArgument(
            f"--gateways {count}: must be from 1 to {MAX_GATEWAYS}", field="--gateways"
        )


def with_gateways(deployment: Deployment, count: int) -> Deployment:
    """Return the deployment with the settings for each of several gateways.

    Raises `InvalidArgument` if gateways can't share their ports or if the memory of one of them
    wouldn't be enough for the largest request body.
    """
    config = deployment.gateway
    check_shared("gateway.metrics_listen", config.metrics_listen, count, "gateways")
    memory, body = config.limits.max_memory_bytes, config.limits.max_body_bytes
    least = BODIES_IN_MEMORY * body * count
    if memory >= BODIES_IN_MEMORY * body and memory < least:
        raise InvalidArgument(
            f"gateway.limits.max_memory_bytes: {memory} bytes are too few for {count} gateways "
            f"with bodies of up to {body} bytes (gateway.limits.max_body_bytes); give at least "
            f"{least}, or start fewer gateways (--gateways)",
            field="gateway.limits.max_memory_bytes",
        )
    parts: dict[str, object] = {
        group: {name: -(-getattr(getattr(config, group), name) // count) for name in names}
        for group, names in DIVIDED.items()
    }
    metrics_listen = config.metrics_listen or METRICS_LISTEN
    return with_gateway(
        deployment, {**parts, "sharing": {"ports": True}, "metrics_listen": metrics_listen}
    )


def with_reserved_ports(deployment: Deployment, held: contextlib.ExitStack) -> Deployment:
    """Return the deployment with ports that stay reserved for its gateways until `held` is closed.

    Raises `Unavailable` if a port is in use.
    """
    ports = {}
    for name in ("http_listen", "grpc_listen"):
        field = f"gateway.{name}"
        address = expanded(getattr(deployment.gateway, name), os.environ, field=field)
        host, port = host_and_port(address, field=field)
        try:
            sockets = reserve_port(host, port)
        except OSError as error:
            raise Unavailable(f"{field}: {address}: {error.strerror}", field=field) from error
        for each in sockets:
            held.enter_context(each)
        ports[name] = joined(host, sockets[0].getsockname()[1])
    return with_gateway(deployment, ports)


def with_shared_directory(deployment: Deployment, path: Path) -> Deployment:
    """Return the deployment with a new shared directory in `path`, unless it already has one. In
    this directory, the gateways share the usage of API keys and the spoken answers.
    """
    if deployment.gateway.sharing.directory:
        return deployment
    path.mkdir(mode=0o700)
    return with_gateway(deployment, {"sharing": {"directory": str(path)}})
