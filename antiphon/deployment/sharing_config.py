"""Settings for several gateway processes on one host."""

from __future__ import annotations

import sys

import msgspec

from antiphon.errors import InvalidArgument


class SharingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for several gateway processes that serve the same ports on one host.

    `antiphon serve --gateways` sets them and splits the limits among the processes. In a file, all
    other settings apply to each process.
    """

    # Whether other gateways may also listen on the ports of `http_listen` and `grpc_listen`. The
    # kernel distributes new connections among them (SO_REUSEPORT). This requires Linux and a
    # `metrics_listen` for each gateway, and excludes `scaler.listen`.
    ports: bool = False
    # A directory in which the gateways of this host share the use of API keys and the transcripts
    # to which chats can refer, so that limits and IDs apply to all of them. If it is empty, each
    # gateway keeps this data for itself. Only gateways of the same user and deployment should use
    # it.
    directory: str = ""


def check_shared_ports(
    metrics_listen: str, scaler_listen: str, *, platform: str = sys.platform
) -> None:
    """Raise `InvalidArgument` if a gateway with these settings can't share its ports.

    Other systems also have SO_REUSEPORT, but they don't distribute connections evenly.
    """
    if platform != "linux":
        raise InvalidArgument(
            "gateway.sharing.ports: several gateways on one host need Linux, which distributes "
            "the connections among them; start a single gateway",
            field="gateway.sharing.ports",
        )
    if not metrics_listen:
        raise InvalidArgument(
            "gateway.metrics_listen: must be set with gateway.sharing.ports, because a shared port "
            "would show the metrics of any one gateway; give a port, or 127.0.0.1:0 for a free one",
            field="gateway.metrics_listen",
        )
    if scaler_listen:
        raise InvalidArgument(
            "gateway.scaler.listen: can't be used with gateway.sharing.ports; start a single "
            "gateway, or remove this setting",
            field="gateway.scaler.listen",
        )
