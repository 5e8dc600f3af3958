"""Deployments for tests: everything on this host, every port free."""

from __future__ import annotations

from pathlib import Path

from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig


def local_deployment(model: Path, **stages: StageConfig) -> Deployment:
    """All stages and the gateway of a checkpoint, on ports that the system picks."""
    gateway = GatewayConfig(http_listen="127.0.0.1:0", grpc_listen="127.0.0.1:0")
    return Deployment(model=str(model), stages=stages, gateway=gateway)
