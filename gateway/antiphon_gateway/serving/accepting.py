"""Accepts connections and counts them before their TLS handshake.

asyncio's servers only call the protocol of a TLS connection after its handshake. A client that
never completes its handshake would occupy a file descriptor that is not subject to any limit.
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
"""How many seconds to stop accepting connections for after the process or the host has run out of
file descriptors.
"""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


async def accept_connections(
    listener: socket.socket, accepted: Callable[[socket.socket, str], None]
) -> None:
    """Call `accepted` with each connection and the address of its client. The callback becomes the
    owner of the socket.

    This runs until it is cancelled, and then closes the listening socket.
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
                        log.warning("cannot accept connections: %s", error.strerror)
                    exhausted = True
                    await asyncio.sleep(RETRY_S)
                # In other cases, the client has disconnected while its connection was waiting.
                continue
            exhausted = False
            # An error in the callback is passed to the handler of the event loop, and accepting
            # continues.
            loop.call_soon(accepted, connection, address[0])
            # While connections are waiting, `sock_accept` does not yield.
            await asyncio.sleep(0)


def start_connection(
    connected: socket.socket,
    protocol: asyncio.Protocol,
    tls: ssl.SSLContext | None,
    *,
    handshake_s: float,
    shutdown_s: float,
) -> asyncio.Task[None]:
    """Connect a protocol to an accepted socket. If `tls` is set, a TLS handshake comes first.

    `shutdown_s` is the time in seconds that TLS has to close the connection at the end. The task is
    done when the protocol is connected or the client has failed. Cancelling the task cuts the
    connection.
    """
    task = asyncio.create_task(_connect(connected, protocol, tls, handshake_s, shutdown_s))
    # If a task is cancelled before it starts, nothing else closes the socket.
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
        # The client does not use TLS, has no valid certificate, is too slow, or has disconnected.
        log.debug("no connection: %s", error)
