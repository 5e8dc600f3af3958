"""The file descriptors that a gateway may need, and how many it may have."""

from __future__ import annotations

import logging
import resource

from antiphon.deployment.schema import GatewayConfig

log = logging.getLogger("gateway")

RESERVED = 256
"""For listeners, connections to stages and their links, files, and pipes."""
PER_DECODER = 4
"""The files in memory that a decoder process is given, in each of two lanes."""


def descriptors_needed(config: GatewayConfig) -> int:
    """The most that the gateway's settings let it open."""
    decoders = 2 * PER_DECODER * config.decoder_processes
    return config.max_connections + config.max_grpc_connections + decoders + RESERVED


def raise_limit(config: GatewayConfig) -> None:
    """Raise this process's soft limit of open files as far as it may be raised, and warn where that
    is too little."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = descriptors_needed(config)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < needed:
        log.warning(
            "at most %d files may be open, and %d may be needed: raise the limit (ulimit -Hn), or "
            "lower gateway.max_connections and gateway.max_grpc_connections",
            hard,
            needed,
        )
