"""Finds out before anything is started whether its addresses can be listened on."""

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
"""What sets the port of a setting: the variable of `make up`, and the option of `up`."""


def check_free(wanted: Mapping[str, str]) -> None:
    """Bind each address (host:port, by the setting that has it) and let all of them go again.

    Port 0 is always free. Raises `Unavailable` for the first that is taken, by another
    program or by a setting before it, and `InvalidArgument` for one that is no address.
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
                # `socket` appends the address to the system's words.
                words = (error.strerror or str(error)).partition(" (while")[0]
                remedy = "choose another"
                if field in OPTIONS:
                    variable, option = OPTIONS[field]
                    other = port + 1 if port < MAX_PORT else port - 1
                    remedy += f" (make up {variable}={other}, or {option} {other})"
                raise Unavailable(
                    f"{field}: cannot listen on {address}: {words}; {remedy}, "
                    "or stop what listens there"
                ) from error
