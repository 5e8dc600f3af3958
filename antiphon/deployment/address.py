"""Parses and formats the addresses in a deployment."""

from __future__ import annotations

from antiphon.errors import InvalidArgument

MAX_PORT = 65_535
LOCALHOST = "localhost"
ALL_ADDRESSES = ("0.0.0.0", "::")
"""Hosts that represent all addresses. The first covers IPv4 only, and the second covers both IPv4
and IPv6.
"""


def host_and_port(address: str, *, field: str) -> tuple[str, int]:
    """Split "host:port" into its parts. An IPv6 host must be in brackets. Raises `InvalidArgument`
    if the address is invalid.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidArgument(f"{field}: {address!r} is not HOST:PORT", field=field)
    bare = host.removeprefix("[").removesuffix("]")
    if ":" in bare and host != f"[{bare}]":
        raise InvalidArgument(
            f"{field}: the IPv6 address in {address!r} needs brackets; use "
            f"{joined(bare, int(port))}",
            field=field,
        )
    if int(port) > MAX_PORT:
        raise InvalidArgument(
            f"{field}: the port must be from 0 to {MAX_PORT}, got {port}", field=field
        )
    return bare, int(port)


def joined(host: str, port: int) -> str:
    """Return the address with the given host and port. An IPv6 host is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_listen(address: str, *, field: str) -> None:
    """Raise `InvalidArgument` if an address isn't empty and doesn't have the form "host:port"."""
    if address:
        host_and_port(address, field=field)
