"""Resolves the IPv4 and IPv6 addresses on which a process listens.

`localhost` stands for both loopback addresses, and `[::]` stands for all addresses of both
families. A family that the host does not support is left out.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import grpc

from antiphon.deployment.address import ALL_ADDRESSES, LOCALHOST, host_and_port, joined
from antiphon.errors import Unavailable

log = logging.getLogger(__name__)

BACKLOG = 1024
# How many times to look for a port that is free in both address families.
_DRAWS = 16


def listen_hosts(host: str) -> tuple[str, ...]:
    """Return the addresses that a configured host refers to. IPv4 addresses come first."""
    if host == LOCALHOST:
        found = tuple(each for each in ("127.0.0.1", "::1") if _can_bind(each))
        return found or (LOCALHOST,)
    if host == "::" and not _can_bind(host):
        return ("0.0.0.0",)
    return (host,)


def reached_here(address: str) -> str:
    """Return the "host:port" under which processes on this host can reach `address`.

    The result contains an IP address rather than a host name, because a name may resolve to an
    address family that this host doesn't support.
    """
    host, _, port = address.rpartition(":")
    if host.strip("[]") not in (LOCALHOST, *ALL_ADDRESSES):
        return address
    return joined(listen_hosts(LOCALHOST)[0], int(port))


def listen_sockets(host: str, port: int, *, share: bool = False) -> list[socket.socket]:
    """Return listening TCP sockets for all addresses of `listen_hosts`, which all use the same
    port.

    If the port is 0, any free port is used. With `share`, several processes of one user can listen
    on the same port (SO_REUSEPORT), and Linux distributes new connections among them. Raises
    `OSError` if an address is already in use, or if only one of the two sockets is shared.
    """
    return _bound_sockets(host, port, partial(_listen, share=share))


def reserve_port(host: str, port: int) -> list[socket.socket]:
    """Bind sockets to a port that processes with `listen_sockets(share=True)` are going to share.

    The sockets don't listen, so they receive no connections. As long as they are open, other users
    and programs that don't share their ports can't use this port. If the port is 0, any free port
    is used. Raises `OSError` if an address is already in use.
    """
    return _bound_sockets(host, port, _reserve)


def _bound_sockets(
    host: str, port: int, bind: Callable[[str, int], socket.socket]
) -> list[socket.socket]:
    """Call `bind` for all addresses of `listen_hosts`, with the same port. If the port is 0, any
    free port is used.
    """
    for draw in range(_DRAWS):
        with ExitStack() as opened:
            sockets: list[socket.socket] = []
            try:
                for each in listen_hosts(host):
                    at = port or (sockets[0].getsockname()[1] if sockets else 0)
                    sockets.append(opened.enter_context(bind(each, at)))
            except OSError as error:
                if port or error.errno != errno.EADDRINUSE or draw == _DRAWS - 1:
                    raise
                continue
            opened.pop_all()
            return sockets
    raise AssertionError("the last draw returns or raises")


def _listen(host: str, port: int, *, share: bool) -> socket.socket:
    if ":" not in host:
        return socket.create_server((host, port), backlog=BACKLOG, reuse_port=share)
    return socket.create_server(
        (host, port),
        family=socket.AF_INET6,
        backlog=BACKLOG,
        reuse_port=share,
        dualstack_ipv6=_takes_both(host),
    )


def _reserve(host: str, port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # Closed connections of an earlier process don't prevent this, but another reservation does.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if ":" in host:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not _takes_both(host))
        found.bind((host, port))
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except BaseException:
        found.close()
        raise
    return found


def _takes_both(host: str) -> bool:
    """Return whether one socket of this host accepts both address families."""
    return host == "::" and socket.has_dualstack_ipv6()


def _can_bind(host: str) -> bool:
    """Return whether this host has the given address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def listen_at(
    server: grpc.aio.Server,
    address: str,
    *,
    field: str,
    credentials: Callable[[], grpc.ServerCredentials] | None = None,
) -> str:
    """Make a server listen on the "host:port" of the setting `field` and return the server's first
    address.

    If the port is 0, any free port is used. If `credentials` is set, TLS is used. It is called once
    per address, because gRPC fetches the initial certificate of reloadable credentials only once.
    Raises `InvalidArgument` if the address is invalid, and `Unavailable` if the server can't bind
    to it.
    """
    host, port = host_and_port(address, field=field)
    hosts = listen_hosts(host)
    draws = 1 if port or len(hosts) == 1 else _DRAWS
    for draw in range(draws):
        try:
            # If gRPC chose the port, it might already be in use in the other address family.
            at = port if draws == 1 else _free_port(host)
            for each in hosts:
                at = (
                    server.add_insecure_port(joined(each, at))
                    if credentials is None
                    else server.add_secure_port(joined(each, at), credentials())
                )
        except (OSError, RuntimeError) as error:
            if draw < draws - 1:
                continue
            raise Unavailable(
                f"{field}: can't listen on {address}; choose another port, or stop the process "
                "that uses it",
                field=field,
            ) from error
        return joined(hosts[0], at)
    raise AssertionError("the last draw returns or raises")


def _free_port(host: str) -> int:
    """Return a port that is free on all addresses of `listen_hosts`. Raises `OSError` if there is
    no such port.
    """
    sockets = listen_sockets(host, 0)
    port: int = sockets[0].getsockname()[1]
    for each in sockets:
        each.close()
    return port


async def wait_closed(server: grpc.aio.Server) -> None:
    """Wait until a server has stopped or failed."""
    # Shield the wait. If gRPC's own wait were cancelled, the server would never notice that it was
    # stopped.
    ending = asyncio.ensure_future(server.wait_for_termination())
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        raise
    except Exception:
        log.exception("a gRPC server has failed")
