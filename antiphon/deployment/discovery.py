"""The settings for replica discovery."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from antiphon.deployment.bounds import Bytes, Seconds


class DiscoveryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that determine how the gateway finds the replicas of each stage."""

    # How replicas are found. With `static`, they are the `addresses` of the stages. With
    # `kubernetes`, they are the pods of one service per role, which are found through its
    # EndpointSlices.
    kind: Literal["static", "kubernetes"] = "static"
    # The namespace of the services. If it is empty, the namespace of the gateway's own pod is used.
    namespace: str = ""
    # The names of the services by role.
    services: dict[
        str, Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    ] = {}
    # The name of the port on which the stages' pods listen, as listed in the EndpointSlices. If a
    # pod contains several stages, it has a port for each of them.
    port_name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = "grpc"
    # The port that is used if an EndpointSlice does not contain a port with this name.
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 50051
    # The path of a kubeconfig file, for a gateway that runs outside the cluster. If it is empty,
    # the service account of the pod is used.
    kubeconfig: str = ""
    # The interval in seconds at which the EndpointSlices are listed again, in case the watch has
    # missed a change.
    relist_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 20.0
    # The timeout in seconds for a response from the Kubernetes API. The gateway keeps using the
    # known replicas while the API does not respond.
    answer_timeout_s: Seconds = 5.0
    # The maximum size of a list in bytes.
    max_list_bytes: Bytes = 64 << 20
    # The maximum pause in seconds before the API is called again after a failure.
    max_pause_s: Seconds = 5.0
