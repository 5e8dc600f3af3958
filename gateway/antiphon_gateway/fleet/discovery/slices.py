"""The parts of the Kubernetes API's EndpointSlices that the gateway uses.

If the `ready` condition is missing, the endpoint is ready. If `serving` is missing, it has the same
value as `ready`. If `terminating` is missing, it is false.
"""

from __future__ import annotations

import msgspec

SERVICE_LABEL = "kubernetes.io/service-name"


class Conditions(msgspec.Struct, frozen=True):
    """The conditions of an endpoint. If `publishNotReadyAddresses` is set, all endpoints are
    `ready`, so `serving` has to be checked as well.
    """

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class TargetRef(msgspec.Struct, frozen=True):
    """A reference to the endpoint's pod."""

    uid: str = ""


class SliceEndpoint(msgspec.Struct, frozen=True, rename="camel"):
    """An endpoint of a slice. Only the first address is meaningful."""

    addresses: tuple[str, ...] = ()
    conditions: Conditions = Conditions()
    target_ref: TargetRef | None = None
    node_name: str | None = None
    zone: str | None = None


class SlicePort(msgspec.Struct, frozen=True):
    """A port that all endpoints in a slice have. It is the port of the pods rather than that of the
    service.
    """

    name: str | None = ""
    port: int | None = None


class SliceMeta(msgspec.Struct, frozen=True):
    """The metadata of a slice. A label contains the name of its service."""

    name: str = ""
    labels: dict[str, str] | None = None


class EndpointSlice(msgspec.Struct, frozen=True, rename="camel"):
    """A slice that contains some of a service's endpoints. They all have the same address type,
    which is IPv4, IPv6 or FQDN.
    """

    metadata: SliceMeta
    address_type: str = "IPv4"
    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[SlicePort, ...] | None = None


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata of a list, which contains the resource version to start a watch from."""

    resource_version: str = ""


class SliceList(msgspec.Struct, frozen=True):
    """All slices at the time of the request."""

    metadata: ListMeta
    items: tuple[EndpointSlice, ...] | None = None


class Status(msgspec.Struct, frozen=True):
    """The API's explanation of why it has refused a request."""

    code: int = 0
    reason: str | None = ""
    message: str | None = ""


class WatchEvent(msgspec.Struct, frozen=True):
    """An event of a watch. `type` is ADDED, MODIFIED, DELETED, ERROR or BOOKMARK. `object` is a
    slice, or a status if the type is ERROR.
    """

    type: str
    object: msgspec.Raw
