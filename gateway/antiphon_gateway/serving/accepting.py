"""Connections that are counted before their TLS handshake.

asyncio's servers create the protocol of a TLS connection when it is accepted, but call it only
after the handshake. A client that never completes one would hold a descriptor that no bound counts.
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
"""How long accepting pauses when the process or the host has no descriptor left."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


async def accept_connections(
    listener: socket.socket, accepted: Callable[[socket.socket, str], None]
) -> None:
    """Call `accepted` with each connection and its client's address. It owns the socket.

    Runs until it is cancelled, and closes the listener then.
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
                # Otherwise the client has left while its connection waited.
                continue
            exhausted = False
            # An error in it goes to the loop's handler, and accepting goes on.
            loop.call_soon(accepted, connection, address[0])
            # While connections wait, `sock_accept` does not yield.
            await asyncio.sleep(0)


def start_connection(
    connected: socket.socket,
    protocol: asyncio.Protocol,
    tls: ssl.SSLContext | None,
    *,
    handshake_s: float,
    shutdown_s: float,
) -> asyncio.Task[None]:
    """Connect a protocol to an accepted socket, after a TLS handshake if there is `tls`.

    `shutdown_s`: for TLS to close the connection in the end. The task is done when the protocol is
    connected, or the client has failed. Cancelling it cuts the connection.
    """
    task = asyncio.create_task(_connect(connected, protocol, tls, handshake_s, shutdown_s))
    # A task that is cancelled before it begins has nothing else that closes the socket.
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
        # The client does not speak TLS, shows no good certificate, is late, or has left.
        log.debug("no connection: %s", error)
