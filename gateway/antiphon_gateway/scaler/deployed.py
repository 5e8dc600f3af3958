"""The scaler that a deployment asks for: which gateways there are, and what their stages have."""

from __future__ import annotations

import msgspec

from antiphon.deployment.address import host_and_port
from antiphon.deployment.schema import Deployment, GatewayConfig
from antiphon_gateway.admission.reservation import Admission
from antiphon_gateway.fleet.discovery.chosen import GATEWAY
from antiphon_gateway.fleet.discovery.kubernetes import KubernetesEndpoints
from antiphon_gateway.fleet.discovery.replica_endpoint import Discovery
from antiphon_gateway.fleet.discovery.static import StaticAddresses
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.replicated_stage import ReplicatedStage
from antiphon_gateway.scaler.demand import Capacity
from antiphon_gateway.scaler.scaler import Scaler

SCALER_PORT = "scaler"
"""How the slices of the gateways call the port of their scalers."""


def scaler_of(deployment: Deployment, fleet: Fleet, admission: Admission) -> Scaler | None:
    """The scaler; None where the deployment names no port for it."""
    config = deployment.gateway
    if not config.scaler.listen:
        return None
    # Who waits for a change of the fleet looks a few times more often than he must.
    return Scaler(deployment, admission, _gateways(config), lambda: _capacity(fleet), fleet.changes)


def _capacity(fleet: Fleet) -> dict[str, Capacity]:
    """The slots of the stages, by role, as their replicas last reported them: also those that
    finish what they have, which somebody has to take over when they are gone."""
    return {
        stage.role: Capacity(
            slots=tuple(load.slots for load in stage.reported if load.slots and not load.draining),
            in_use=sum(load.open_segments for load in stage.reported),
            unknown=_unknown(stage) if fleet.discovered else "discovery has told no replicas yet",
        )
        for stage in fleet
    }


def _unknown(stage: ReplicatedStage) -> str:
    """Describe the replicas whose load this gateway cannot read, although others may use them.

    Empty if there are none.
    """
    silent = stage.silent
    if not silent:
        return ""
    return f"{len(silent)} of {len(stage)} replicas, one at {silent[0]}, cannot be asked from here"


def _gateways(config: GatewayConfig) -> Discovery:
    """All gateways. In Kubernetes each has its scaler at the port `scaler` of its slices."""
    found = config.discovery
    if found.kind != "kubernetes" or GATEWAY not in found.services:
        return StaticAddresses({GATEWAY: config.scaler.peers})
    _, port = host_and_port(config.scaler.listen, field="gateway.scaler.listen")
    services = {GATEWAY: found.services[GATEWAY]}
    ports = {"port": port, "port_name": SCALER_PORT}
    return KubernetesEndpoints(msgspec.structs.replace(found, services=services, **ports))
