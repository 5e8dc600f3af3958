"""Where a process listens: its addresses of both families, and how others write them.

`localhost` stands for both loopback addresses, `[::]` for all addresses of both families. A family
that this host lacks is left out.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import ExitStack

import grpc

from antiphon.deployment.address import ALL_ADDRESSES, LOCALHOST, host_and_port, joined
from antiphon.errors import Unavailable

log = logging.getLogger(__name__)

BACKLOG = 1024
# How often another port is drawn that is to be free in both families.
_DRAWS = 16


def listen_hosts(host: str) -> tuple[str, ...]:
    """The addresses that the host of a setting stands for, those of IPv4 first."""
    if host == LOCALHOST:
        found = tuple(each for each in ("127.0.0.1", "::1") if _can_bind(each))
        return found or (LOCALHOST,)
    if host == "::" and not _can_bind(host):
        return ("0.0.0.0",)
    return (host,)


def reached_here(address: str) -> str:
    """The "host:port" at which processes of this host reach what listens at `address`.

    It has no name in it, as a name may resolve to the family that this host lacks.
    """
    host, _, port = address.rpartition(":")
    if host.strip("[]") not in (LOCALHOST, *ALL_ADDRESSES):
        return address
    return joined(listen_hosts(LOCALHOST)[0], int(port))


def listen_sockets(host: str, port: int) -> list[socket.socket]:
    """Listening TCP sockets, one for each of `listen_hosts`, all at one port; port 0 is any free
    one. Raises `OSError` when an address is taken."""
    for draw in range(_DRAWS):
        with ExitStack() as opened:
            sockets: list[socket.socket] = []
            try:
                for each in listen_hosts(host):
                    at = port or (sockets[0].getsockname()[1] if sockets else 0)
                    sockets.append(opened.enter_context(_listen(each, at)))
            except OSError as error:
                if port or error.errno != errno.EADDRINUSE or draw == _DRAWS - 1:
                    raise
                continue
            opened.pop_all()
            return sockets
    raise AssertionError("the last draw returns or raises")


def _listen(host: str, port: int) -> socket.socket:
    if ":" not in host:
        return socket.create_server((host, port), backlog=BACKLOG)
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(
        (host, port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=both
    )


def _can_bind(host: str) -> bool:
    """Whether this machine has the address."""
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
    """Have a server listen on the "host:port" of the setting `field`; the first address that it
    got, where port 0 is any that is free. With TLS if there are `credentials`, which
    makes them for each address: gRPC asks those of renewed files for their first certificate once.

    Raises `InvalidArgument` for a wrong address, `Unavailable` for one that cannot be had.
    """
    host, port = host_and_port(address, field=field)
    hosts = listen_hosts(host)
    draws = 1 if port or len(hosts) == 1 else _DRAWS
    for draw in range(draws):
        try:
            # gRPC would draw a port that may be taken in the other family.
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
                f"{field}: cannot listen on {address}; choose another port, or stop what listens "
                "there",
                field=field,
            ) from error
        return joined(hosts[0], at)
    raise AssertionError("the last draw returns or raises")


def _free_port(host: str) -> int:
    """A port that nothing listens at, at any of `listen_hosts`. Raises `OSError` without one."""
    sockets = listen_sockets(host, 0)
    port: int = sockets[0].getsockname()[1]
    for each in sockets:
        each.close()
    return port


async def wait_closed(server: grpc.aio.Server) -> None:
    """Return when a server has stopped, be it by a fault of its own."""
    # Whoever cancels gRPC's wait itself has it forget that it stops.
    ending = asyncio.ensure_future(server.wait_for_termination())
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        raise
    except Exception:
        log.exception("a gRPC server has failed")
