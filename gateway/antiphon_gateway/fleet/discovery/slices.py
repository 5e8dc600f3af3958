"""What the gateway reads of the Kubernetes API's EndpointSlices, as it is sent.

A condition that is not there means: ready; serving as it is ready; not terminating.
"""

from __future__ import annotations

import msgspec

SERVICE_LABEL = "kubernetes.io/service-name"


class Conditions(msgspec.Struct, frozen=True):
    """Of one endpoint. With `publishNotReadyAddresses` all are `ready`, so `serving` counts too."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class TargetRef(msgspec.Struct, frozen=True):
    """The pod of an endpoint."""

    uid: str = ""


class SliceEndpoint(msgspec.Struct, frozen=True, rename="camel"):
    """An endpoint. Only the first of its addresses has a meaning."""

    addresses: tuple[str, ...] = ()
    conditions: Conditions = Conditions()
    target_ref: TargetRef | None = None
    node_name: str | None = None
    zone: str | None = None


class SlicePort(msgspec.Struct, frozen=True):
    """A port of all of a slice's endpoints: of the pods, not of the service."""

    name: str | None = ""
    port: int | None = None


class SliceMeta(msgspec.Struct, frozen=True):
    """The name of a slice, and the service in its label."""

    name: str = ""
    labels: dict[str, str] | None = None


class EndpointSlice(msgspec.Struct, frozen=True, rename="camel"):
    """Some of a service's endpoints, all of one address type: IPv4, IPv6 or FQDN."""

    metadata: SliceMeta
    address_type: str = "IPv4"
    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[SlicePort, ...] | None = None


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """At which version of all objects the list was made."""

    resource_version: str = ""


class SliceList(msgspec.Struct, frozen=True):
    """All slices at one moment."""

    metadata: ListMeta
    items: tuple[EndpointSlice, ...] | None = None


class Status(msgspec.Struct, frozen=True):
    """Why the API refuses."""

    code: int = 0
    reason: str | None = ""
    message: str | None = ""


class WatchEvent(msgspec.Struct, frozen=True):
    """A line of a watch: ADDED, MODIFIED or DELETED with a slice, ERROR with a status, BOOKMARK."""

    type: str
    object: msgspec.Raw
