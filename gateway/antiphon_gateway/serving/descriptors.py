"""The file descriptors of the gateway's process. Both endpoints share one budget."""

from __future__ import annotations

import logging
import resource

from msgspec import structs

from antiphon.deployment.schema import GatewayConfig
from antiphon_gateway.media.decoding.processes import LANES

log = logging.getLogger("gateway")

RESERVED = 256
"""The number of descriptors for listening sockets, connections to stages, their links, files and
pipes.
"""
PER_GRPC_CONNECTION = 3
"""The client's socket, and both ends of the connection to gRPC."""
PER_DECODER = 4
"""The files in memory that a decoder process in each lane uses."""


def descriptors_needed(config: GatewayConfig) -> int:
    """Return the maximum number of descriptors that the gateway may open according to its
    settings.
    """
    return _for_connections(config) + _for_others(config)


def within_limit(config: GatewayConfig) -> GatewayConfig:
    """Raise the soft limit on open files to the hard limit, and adapt the number of connections to
    it.

    If the limit is too low, both endpoints have proportionally fewer connections than configured,
    and a warning contains the values. As a result, the connections of one endpoint never use up the
    descriptors of the other.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = descriptors_needed(config)
    if hard == resource.RLIM_INFINITY or needed <= hard:
        return config
    share = max(hard - _for_others(config), 0) / _for_connections(config)
    fields = ("max_connections", "max_grpc_connections", "max_grpc_connections_per_address")
    most = {name: max(1, int(share * getattr(config.connections, name))) for name in fields}
    fitted = structs.replace(config, connections=structs.replace(config.connections, **most))
    log.warning(
        "%d files may be open, and gateway.connections.max_connections and "
        "gateway.connections.max_grpc_connections need %d: using %d and %d; "
        "raise the limit (ulimit -Hn) or lower these settings",
        hard,
        needed,
        fitted.connections.max_connections,
        fitted.connections.max_grpc_connections,
    )
    return fitted


def _for_connections(config: GatewayConfig) -> int:
    return (
        config.connections.max_connections
        + PER_GRPC_CONNECTION * config.connections.max_grpc_connections
    )


def _for_others(config: GatewayConfig) -> int:
    return len(LANES) * PER_DECODER * config.media.decoder_processes + RESERVED
