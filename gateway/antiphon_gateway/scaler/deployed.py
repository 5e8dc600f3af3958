"""Creates the scaler for a deployment and provides it with the list of gateways and the slots of
their stages.
"""

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
"""The name of the scaler port in the gateways' EndpointSlices."""


def scaler_of(deployment: Deployment, fleet: Fleet, admission: Admission) -> Scaler | None:
    """Return the scaler. Returns None if the deployment doesn't configure a port for it."""
    config = deployment.gateway
    if not config.scaler.listen:
        return None
    # This waits for any change in the fleet, which causes a few more updates than necessary.
    return Scaler(deployment, admission, _gateways(config), lambda: _capacity(fleet), fleet.changes)


def _capacity(fleet: Fleet) -> dict[str, Capacity]:
    """Return the slots of each stage, as last reported by its replicas.

    Replicas that are draining are included, because other replicas will have to take over their
    work.
    """
    return {
        stage.role: Capacity(
            slots=tuple(load.slots for load in stage.reported if load.slots and not load.draining),
            in_use=sum(load.open_segments for load in stage.reported),
            unknown=_unknown(stage)
            if fleet.discovered
            else ("discovery has not found any replicas yet"),
        )
        for stage in fleet
    }


def _unknown(stage: ReplicatedStage) -> str:
    """Return a description of the replicas whose load this gateway can't read, although others may
    be using them.

    If there are no such replicas, the result is empty.
    """
    silent = stage.silent
    if not silent:
        return ""
    return (
        f"{len(silent)} of {len(stage)} replicas can't be reached from this gateway, including "
        f"the one at {silent[0]}"
    )


def _gateways(config: GatewayConfig) -> Discovery:
    """Return a discovery that finds all gateways. In Kubernetes, the scaler of each gateway is
    listed under the port `scaler` in its EndpointSlices.
    """
    found = config.discovery
    if found.kind != "kubernetes" or GATEWAY not in found.services:
        return StaticAddresses({GATEWAY: config.scaler.peers})
    _, port = host_and_port(config.scaler.listen, field="gateway.scaler.listen")
    services = {GATEWAY: found.services[GATEWAY]}
    ports = {"port": port, "port_name": SCALER_PORT}
    return KubernetesEndpoints(msgspec.structs.replace(found, services=services, **ports))
