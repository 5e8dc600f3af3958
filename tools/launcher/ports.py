"""Finds out before anything is started whether its addresses can be listened on."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

from antiphon.deployment.address import host_and_port
from antiphon.errors import Unavailable


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
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                held.enter_context(socket.create_server((host, port), family=family))
            except OSError as error:
                # `socket` appends the address to the system's words.
                words = (error.strerror or str(error)).partition(" (while")[0]
                raise Unavailable(
                    f"{field}: cannot listen on {address}: {words}; choose another, "
                    "or stop what listens there"
                ) from error
