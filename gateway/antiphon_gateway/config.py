"""Reads the gateway's configuration from the command line and the deployment file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from antiphon.deployment.environment import expanded
from antiphon.deployment.schema import Deployment, load_deployment
from antiphon.values.segment import Delivery

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The parsed command line, including the deployment that it refers to."""

    deployment: Deployment
    announce_fd: int | None
    log_level: str


def read_options(
    arguments: Sequence[str] | None = None, *, prog: str = "python -m antiphon_gateway"
) -> GatewayOptions:
    """Parse the command line. Raises `InvalidArgument` if the deployment is invalid."""
    parsed = _parser(prog).parse_args(arguments)
    deployment = load_deployment(parsed.config)
    gateway = deployment.gateway
    listens = {
        name: expanded(
            getattr(parsed, name) or getattr(gateway, name), os.environ, field=f"gateway.{name}"
        )
        for name in ("http_listen", "grpc_listen", "metrics_listen")
    }
    scaler_listen = expanded(gateway.scaler.listen, os.environ, field="gateway.scaler.listen")
    scaler = msgspec.structs.replace(gateway.scaler, listen=scaler_listen)
    gateway = msgspec.structs.replace(gateway, **listens, scaler=scaler)
    deployment = msgspec.structs.replace(deployment, gateway=gateway)
    return GatewayOptions(deployment, parsed.announce_fd, parsed.log_level)


def delivery_of(deployment: Deployment) -> dict[str, Delivery]:
    """Return the delivery mode that the deployment configures for each edge."""
    return {edge: Delivery(name) for edge, name in deployment.delivery.items()}


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=(
            "Serves the OpenAI-compatible and gRPC APIs and forwards requests to the stages."
        ),
    )
    parser.add_argument("--config", type=Path, required=True, help="deployment file (YAML)")
    parser.add_argument("--http-listen", metavar="HOST:PORT", help="overrides gateway.http_listen")
    parser.add_argument("--grpc-listen", metavar="HOST:PORT", help="overrides gateway.grpc_listen")
    parser.add_argument(
        "--metrics-listen", metavar="HOST:PORT", help="overrides gateway.metrics_listen"
    )
    parser.add_argument(
        "--announce-fd",
        type=int,
        metavar="N",
        help=("write events to this file descriptor as JSON lines"),
    )
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info")
    return parser
