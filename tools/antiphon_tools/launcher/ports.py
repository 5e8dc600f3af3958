"""Checks whether addresses are available before anything is started."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Mapping

from antiphon.deployment.address import MAX_PORT, host_and_port
from antiphon.deployment.environment import expanded
from antiphon.errors import Unavailable
from antiphon.transport.listening import listen_sockets

OPTIONS = {
    "gateway.http_listen": ("PORT", "--port"),
    "gateway.grpc_listen": ("GRPC_PORT", "--grpc-port"),
}
"""The `make up` variable and the `up` option that set the port of a setting."""

# The host is on another machine, or this machine can't use its kind of address.
_OTHER_HOST = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)
# Some functions raise a plain `OSError` with these numbers if they can't resolve a name.
_UNRESOLVED = (socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_NODATA)
UNPRIVILEGED_PORT = 1024
"""The first port that any user can use, by default."""


def check_free(wanted: Mapping[str, str]) -> None:
    """Bind each address and release all of them again.

    The keys of `wanted` are settings, and the values are addresses in the form host:port. Port 0 is
    always available. Raises `Unavailable` for the first address that can't be used, for example
    because another program or a previous setting uses it. Raises `InvalidArgument` if a value is
    not an address.
    """
    with contextlib.ExitStack() as held:
        for field, written in wanted.items():
            address = expanded(written, os.environ, field=field)
            host, port = host_and_port(address, field=field)
            if not port:
                continue
            try:
                for each in listen_sockets(host, port):
                    held.enter_context(each)
            except OSError as error:
                # `socket` appends the address to the error message of the system.
                words = (error.strerror or str(error)).partition(" (while")[0]
                raise Unavailable(
                    f"{field}: can't listen on {address}: {words}; {_remedy(field, port, error)}"
                ) from error


def _remedy(field: str, port: int, error: OSError) -> str:
    """Return what to do if a process can't listen on this port of a setting's address."""
    has_options = field in OPTIONS
    unresolved = isinstance(error, socket.gaierror) or error.errno in _UNRESOLVED
    if unresolved or error.errno in _OTHER_HOST:
        return "use localhost, or an address of this machine" + (" (--host)" if has_options else "")
    denied = error.errno == errno.EACCES
    if denied and port < UNPRIVILEGED_PORT:
        other = port + UNPRIVILEGED_PORT
    else:
        other = port + 1 if port < MAX_PORT else port - 1
    remedy = "choose another"
    if has_options:
        variable, option = OPTIONS[field]
        remedy += f" (make up {variable}={other}, or {option} {other})"
    if denied:
        return f"{remedy}, or give this user the right to use the port"
    return f"{remedy}, or stop the process that uses the port"
