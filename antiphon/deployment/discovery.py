"""The settings of discovery."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from antiphon.deployment.bounds import Bytes, Seconds


class DiscoveryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """From where the gateway knows which replicas of each stage there are."""

    # `static`: the stages' `addresses`. `kubernetes`: the pods behind a service for each role, by
    # its EndpointSlices.
    kind: Literal["static", "kubernetes"] = "static"
    # Of the services; empty: that of the gateway's own pod. Their names by role, and the name that
    # their slices have for the port at which the stages' pods listen: a pod that has several stages
    # listens at one for each. `port` is where a slice names none.
    namespace: str = ""
    services: dict[
        str, Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    ] = {}
    port_name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = "grpc"
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 50051
    # A kubeconfig file, for a gateway outside the cluster; empty: the pod's service account.
    kubeconfig: str = ""
    # Slices are listed anew so often, which repairs what the watch between two lists has missed.
    relist_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 20.0
    # How long the API may take to answer, the bytes of a list, and the longest pause until it is
    # asked again when it has failed. Meanwhile what is known holds.
    answer_timeout_s: Seconds = 5.0
    max_list_bytes: Bytes = 64 << 20
    max_pause_s: Seconds = 5.0
