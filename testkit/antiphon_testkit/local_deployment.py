"""Deployments for tests, in which everything runs on this host and uses free ports."""

from __future__ import annotations

from pathlib import Path

from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig


def local_deployment(model: Path, **stages: StageConfig) -> Deployment:
    """Return a deployment with a gateway and all stages of a checkpoint, on ports that the
    operating system chooses.
    """
    gateway = GatewayConfig(http_listen="127.0.0.1:0", grpc_listen="127.0.0.1:0")
    return Deployment(model=str(model), stages=stages, gateway=gateway)
