"""The gateway's budget for file descriptors, which both endpoints share."""

from __future__ import annotations

import logging
import resource
import sys

from msgspec import structs

from antiphon.deployment.schema import GatewayConfig
from antiphon_gateway.media.decoding.processes import LANES

log = logging.getLogger("gateway")

RESERVED = 256
"""The number of descriptors that are set aside for listening sockets, connections to stages, their
links, files and pipes.
"""
PER_GRPC_CONNECTION = 3
"""The number of descriptors for one gRPC connection. They are the client's socket and both ends of
the connection to gRPC.
"""
PER_DECODER = 4
"""The number of in-memory files that a decoder process in each lane uses."""

OPEN_MAX = 10_240
"""The number of open files that a system is guaranteed to accept if its hard limit is infinite
(macOS).
"""


def descriptors_needed(config: GatewayConfig) -> int:
    """Return the maximum number of descriptors that the gateway may open with its settings."""
    return _for_connections(config) + _for_others(config)


def within_limit(config: GatewayConfig) -> GatewayConfig:
    """Raise the soft limit on open files to the hard limit and adjust the number of connections to
    it.

    If the limit is too low, the maximum number of connections is reduced proportionally for both
    endpoints, and a warning shows the values. This ensures that one endpoint can't use up the
    other's descriptors.
    """
    most = _raise_limit()
    needed = descriptors_needed(config)
    if needed <= most:
        return config
    share = max(most - _for_others(config), 0) / _for_connections(config)
    fields = ("max_connections", "max_grpc_connections", "max_grpc_connections_per_address")
    fewer = {name: max(1, int(share * getattr(config.connections, name))) for name in fields}
    fitted = structs.replace(config, connections=structs.replace(config.connections, **fewer))
    log.warning(
        "the process may open %d files, but gateway.connections.max_connections and "
        "gateway.connections.max_grpc_connections require %d: using %d and %d instead; raise "
        "the limit (ulimit -Hn), or lower these settings",
        most,
        needed,
        fitted.connections.max_connections,
        fitted.connections.max_grpc_connections,
    )
    return fitted


def _raise_limit() -> int:
    """Raise the soft limit as far as the system allows and return the result.

    Linux always accepts the hard limit. macOS reports an infinite hard limit but rejects values
    above its own maximum, which is at least `OPEN_MAX`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (hard, OPEN_MAX):
        if _limit(soft) >= _limit(most):
            continue
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (ValueError, OSError):
            continue
        return _limit(most)
    return _limit(soft)


def _limit(number: int) -> int:
    """Return a limit in a form that can be compared."""
    return sys.maxsize if number == resource.RLIM_INFINITY else number


def _for_connections(config: GatewayConfig) -> int:
    return (
        config.connections.max_connections
        + PER_GRPC_CONNECTION * config.connections.max_grpc_connections
    )


def _for_others(config: GatewayConfig) -> int:
    return len(LANES) * PER_DECODER * config.media.decoder_processes + RESERVED
