"""Accepts connections and counts them before their TLS handshake.

asyncio's own servers call the protocol of a TLS connection only after its handshake. If a client
never completed its handshake, it would occupy a file descriptor without counting towards any limit.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

log = logging.getLogger(__name__)

RETRY_S = 0.1
"""The number of seconds for which no connections are accepted after the process or the host has run
out of file descriptors.
"""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


async def accept_connections(
    listener: socket.socket, accepted: Callable[[socket.socket, str], None]
) -> None:
    """Call `accepted` with each new connection and the address of its client. The callback takes
    ownership of the socket.

    This runs until it is cancelled and closes the listening socket at the end.
    """
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    exhausted = False
    with listener:
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    if not exhausted:
                        log.warning("can't accept connections: %s", error.strerror)
                    exhausted = True
                    await asyncio.sleep(RETRY_S)
                # Otherwise, the client has disconnected while its connection was waiting to be
                # accepted.
                continue
            exhausted = False
            # If the callback raises an error, the error goes to the event loop's exception handler,
            # and accepting continues.
            loop.call_soon(accepted, connection, address[0])
            # `sock_accept` doesn't yield as long as connections are waiting.
            await asyncio.sleep(0)


def start_connection(
    connected: socket.socket,
    protocol: asyncio.Protocol,
    tls: ssl.SSLContext | None,
    *,
    handshake_s: float,
    shutdown_s: float,
) -> asyncio.Task[None]:
    """Connect a protocol to an accepted socket. If `tls` is set, a TLS handshake is performed
    first.

    `shutdown_s` is the time in seconds that TLS has to close the connection at the end. The task is
    done once the protocol is connected or the handshake has failed. Cancelling it cuts the
    connection.
    """
    task = asyncio.create_task(_connect(connected, protocol, tls, handshake_s, shutdown_s))
    # If the task is cancelled before it has started, nothing else would close the socket.
    task.add_done_callback(lambda done: connected.close() if done.cancelled() else None)
    return task


async def _connect(
    connected: socket.socket,
    protocol: asyncio.Protocol,
    tls: ssl.SSLContext | None,
    handshake_s: float,
    shutdown_s: float,
) -> None:
    loop = asyncio.get_running_loop()
    try:
        if tls is None:
            await loop.connect_accepted_socket(lambda: protocol, connected)
        else:
            await loop.connect_accepted_socket(
                lambda: protocol,
                connected,
                ssl=tls,
                ssl_handshake_timeout=handshake_s,
                ssl_shutdown_timeout=shutdown_s,
            )
    except OSError as error:
        # The client doesn't use TLS, has no valid certificate, is too slow, or has disconnected.
        log.debug("no connection: %s", error)
