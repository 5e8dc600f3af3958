"""A caller's credentials, in a form that HTTP, WebSockets and gRPC have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import unquote

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a request.

    `authorization` is the header or metadata of that name. `peer` is the address at the other end
    of the connection, or None if the socket has no address. `values` looks up all values of a
    header or of metadata, given its name in lower case. Values are decoded only if a proxy is
    configured.
    """

    authorization: str | None
    peer: Address | None
    values: Callable[[str], list[str]] = field(repr=False)


def peer_address(host: str) -> Address | None:
    """Return the address of a socket. An IPv4 address that is mapped to IPv6 is returned as an IPv4
    address.
    """
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return (isinstance(found, IPv6Address) and found.ipv4_mapped) or found


class GrpcPeers:
    """The addresses of the clients whose connections the gateway forwards to gRPC.

    The key is the name that gRPC uses for the connection's socket, which is either
    `unix-abstract:NAME` or `unix:PATH`. Other users can't create a socket with such a name.
    """

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}

    def add(self, name: str, host: str) -> None:
        """Record that a connection of this client is forwarded from the socket with this name."""
        self._hosts[name] = host

    def remove(self, name: str) -> None:
        """Forget a connection that has ended. Has no effect if the connection is unknown."""
        self._hosts.pop(name, None)

    def address_of(self, peer: str) -> Address | None:
        """Return the address for a peer, given the name that gRPC uses for it.

        The name has the form `ipv4:10.1.2.3:4711` or `ipv6:%5B::1%5D:4711`, or is a name that was
        added.
        """
        family, _, rest = (name := unquote(peer)).partition(":")
        if family in ("unix", "unix-abstract"):
            return peer_address(self._hosts.get(name, ""))
        if family not in ("ipv4", "ipv6"):
            return None
        return peer_address(rest.rpartition(":")[0].strip("[]"))
