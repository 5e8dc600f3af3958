"""Computes endpoints from the EndpointSlices that `kubernetes.py` lists and watches. This module
performs no I/O.

A service can have several slices. For example, there is at least one for each address family. While
the API server is moving an endpoint, it can appear in two slices. For this reason, endpoints with
the same role and pod are merged. The result is ready if all slices report it as ready, and
terminating if any of them does. If there is an IPv4 address, it is preferred.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from antiphon.deployment.address import joined
from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from antiphon_gateway.fleet.discovery.slices import SERVICE_LABEL, EndpointSlice, SliceEndpoint

_FAMILIES = ("IPv4", "IPv6")


class Reflector:
    """Keeps track of the slices for a set of services. `services` maps roles to service names.

    An endpoint uses the port named `port_name` in its slice. If there is no such port, `port` is
    used.
    """

    def __init__(self, services: Mapping[str, str], port: int, port_name: str = "grpc") -> None:
        self._roles = {service: role for role, service in services.items()}
        self._port = port
        self._port_name = port_name
        self._by_slice: dict[str, tuple[Endpoint, ...]] = {}

    def replace(self, slices: Iterable[EndpointSlice]) -> None:
        """Replace all slices with those of a new list."""
        self._by_slice.clear()
        for each in slices:
            self.put(each)

    def put(self, changed: EndpointSlice) -> None:
        """Add or update a slice."""
        self._by_slice[changed.metadata.name] = tuple(self._endpoints_of(changed))

    def remove(self, gone: EndpointSlice) -> None:
        """Remove a slice."""
        self._by_slice.pop(gone.metadata.name, None)

    def endpoints(self) -> frozenset[Endpoint]:
        """Return the endpoints of all slices, without duplicates."""
        merged: dict[tuple[str, str], Endpoint] = {}
        for in_slice in self._by_slice.values():
            for endpoint in in_slice:
                key = endpoint.role, endpoint.uid
                known = merged.get(key)
                merged[key] = endpoint if known is None else _merged(known, endpoint)
        return frozenset(merged.values())

    def _endpoints_of(self, told: EndpointSlice) -> Iterator[Endpoint]:
        role = self._roles.get((told.metadata.labels or {}).get(SERVICE_LABEL, ""))
        if role is None or told.address_type not in _FAMILIES:
            return
        named = (each.port for each in told.ports or () if each.name == self._port_name)
        port = next(named, None) or self._port
        for each in told.endpoints or ():
            if each.addresses:
                yield self._endpoint(role, each, port)

    def _endpoint(self, role: str, told: SliceEndpoint, port: int) -> Endpoint:
        address = joined(told.addresses[0], port)
        conditions = told.conditions
        terminating = conditions.terminating is True
        says_ready = conditions.ready is not False
        serving = says_ready if conditions.serving is None else conditions.serving
        return Endpoint(
            role=role,
            uid=(told.target_ref.uid if told.target_ref else "") or address,
            address=address,
            node=told.node_name or "",
            zone=told.zone or "",
            ready=says_ready and serving and not terminating,
            terminating=terminating,
        )


def _merged(one: Endpoint, other: Endpoint) -> Endpoint:
    """Merge two endpoints of the same pod. The result doesn't depend on their order."""
    first = min(one, other, key=lambda each: (each.address.startswith("["), each.address))
    return replace(
        first,
        node=one.node or other.node,
        zone=one.zone or other.zone,
        ready=one.ready and other.ready,
        terminating=one.terminating or other.terminating,
    )
