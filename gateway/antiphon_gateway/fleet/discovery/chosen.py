"""Creates the discovery that is configured in a deployment."""

from __future__ import annotations

import msgspec

from antiphon.deployment.schema import Deployment, DiscoveryConfig
from antiphon.errors import InvalidArgument
from antiphon_gateway.fleet.discovery.kubernetes import KubernetesEndpoints
from antiphon_gateway.fleet.discovery.replica_endpoint import Discovery
from antiphon_gateway.fleet.discovery.static import StaticAddresses

GATEWAY = "gateway"
"""The role that represents gateways in `gateway.discovery.services`. Their scalers use it to find
each other.
"""


def discovery_of(deployment: Deployment) -> Discovery:
    """Return the discovery configured by `gateway.discovery`. Raises `InvalidArgument` if it has no
    way to find one of the stages.
    """
    config = deployment.gateway.discovery
    if config.kind == "static":
        for role, stage in deployment.stages.items():
            if not stage.addresses:
                raise InvalidArgument(
                    f"stages.{role}.addresses: is empty; list the addresses of the replicas",
                    field=f"stages.{role}.addresses",
                )
        return StaticAddresses({r: each.addresses for r, each in deployment.stages.items()})
    field = "gateway.discovery.services"
    if nameless := sorted(deployment.stages.keys() - config.services.keys()):
        raise InvalidArgument(
            f"{field}: specify a service for {', '.join(nameless)}", field=f"{field}.{nameless[0]}"
        )
    if unknown := sorted(config.services.keys() - deployment.stages.keys() - {GATEWAY}):
        raise InvalidArgument(
            f"{field}: the deployment has no stage {', '.join(unknown)}",
            field=f"{field}.{unknown[0]}",
        )
    if len(set(config.services.values())) < len(config.services):
        raise InvalidArgument(f"{field}: each stage needs a separate service", field=field)
    return KubernetesEndpoints(of_stages(config))


def of_stages(config: DiscoveryConfig) -> DiscoveryConfig:
    """Return the configuration without the service of the gateways."""
    stages = {role: name for role, name in config.services.items() if role != GATEWAY}
    return msgspec.structs.replace(config, services=stages)
