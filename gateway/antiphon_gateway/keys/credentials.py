"""The caller's credentials of a request, the same for HTTP, WebSockets and gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import unquote

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Credentials:
    """`authorization` is the header or metadata of that name, `peer` the address of the
    connection's other end (None for a socket without one). `values` looks up all values of a
    header or of metadata by its name in lower case; a request without a proxy decodes none."""

    authorization: str | None
    peer: Address | None
    values: Callable[[str], list[str]] = field(repr=False)


def peer_address(host: str) -> Address | None:
    """An address as the socket has it; that of IPv4 where IPv6 carries one."""
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return (isinstance(found, IPv6Address) and found.ipv4_mapped) or found


class GrpcPeers:
    """Addresses of the clients whose connections the gateway passes on to gRPC, by the abstract
    name that each connection's socket holds as long as it is open. No other process can take a
    name."""

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}

    def add(self, name: str, host: str) -> None:
        """A connection of this client is passed on from the socket of this name."""
        self._hosts[name] = host

    def remove(self, name: str) -> None:
        """The connection has ended, if there was one; further calls do nothing."""
        self._hosts.pop(name, None)

    def address_of(self, peer: str) -> Address | None:
        """The address in gRPC's name of a peer: `ipv4:10.1.2.3:4711`, `ipv6:%5B::1%5D:4711`, or
        `unix-abstract:NAME` with a name that was added."""
        family, _, rest = unquote(peer).partition(":")
        if family == "unix-abstract":
            return peer_address(self._hosts.get(rest, ""))
        if family not in ("ipv4", "ipv6"):
            return None
        return peer_address(rest.rpartition(":")[0].strip("[]"))
