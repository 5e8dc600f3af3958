"""Checks whether addresses are available before anything is started."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from antiphon.deployment.address import MAX_PORT, host_and_port
from antiphon.errors import Unavailable
from antiphon.transport.listening import listen_sockets

OPTIONS = {
    "gateway.http_listen": ("PORT", "--port"),
    "gateway.grpc_listen": ("GRPC_PORT", "--grpc-port"),
}
"""The `make up` variable and the `up` option that set the port of a setting."""


def check_free(wanted: Mapping[str, str]) -> None:
    """Bind each address and release all of them again.

    The keys of `wanted` are settings, and the values are addresses in the form host:port. Port 0 is
    always available. Raises `Unavailable` for the first address that is in use, either by another
    program or by a previous setting. Raises `InvalidArgument` if a value is not an address.
    """
    with contextlib.ExitStack() as held:
        for field, address in wanted.items():
            host, port = host_and_port(address, field=field)
            if not port:
                continue
            try:
                for each in listen_sockets(host, port):
                    held.enter_context(each)
            except OSError as error:
                # `socket` appends the address to the error message of the system.
                words = (error.strerror or str(error)).partition(" (while")[0]
                remedy = "choose another"
                if field in OPTIONS:
                    variable, option = OPTIONS[field]
                    other = port + 1 if port < MAX_PORT else port - 1
                    remedy += f" (make up {variable}={other}, or {option} {other})"
                raise Unavailable(
                    f"{field}: can't listen on {address}: {words}; {remedy}, or stop the "
                    "process that uses the port"
                ) from error
