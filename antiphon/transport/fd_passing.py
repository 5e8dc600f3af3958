"""Passes file descriptors to another process on this host, provided that it presents a secret.

This uses SCM_RIGHTS over a Unix socket in the abstract namespace. Such a socket has no name in the
file system, so a process that is killed doesn't leave anything behind. The two processes may have
different pid and mount namespaces. A process in a different network namespace, for example on
another host or in another pod, can't connect at all.

Several alternatives were considered and rejected. /proc/<pid>/fd requires a shared pid namespace. A
path in /dev/shm is left behind if a process is killed between creating and attaching it. The
resource tracker of `multiprocessing` unlinks segments that are still in use.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import socket
import struct
from collections.abc import Iterable

SECRET_BYTES = 16
RECEIVE_TIMEOUT_S = 1.0
_MAX_GUESTS = 8
log = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("iII")


class FdGiver:
    """Passes `fds` to every process that sends `secret`. It runs on the current event loop until it
    is closed.

    Raises `OSError` if Unix sockets aren't available.
    """

    def __init__(self, *fds: int) -> None:
        self.name = f"antiphon-{secrets.token_hex(SECRET_BYTES)}"
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self._fds = fds
        self._loop = asyncio.get_running_loop()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        try:
            self._listener.bind(f"\0{self.name}")
            self._listener.listen(_MAX_GUESTS)
        except OSError:
            self._listener.close()
            raise
        self._sockets = {self._listener}
        self._loop.add_reader(self._listener, self._admit)

    def close(self) -> None:
        """Stop passing the descriptors. They stay open in this process. This can be called more
        than once.
        """
        while self._sockets:
            self._dismiss(self._sockets.pop())

    def _admit(self) -> None:
        try:
            guest, _ = self._listener.accept()
        except OSError as error:
            log.info("a guest went before it was let in: %s", error)
            return
        if len(self._sockets) > _MAX_GUESTS or _peer_uid(guest) != os.getuid():
            guest.close()
            return
        guest.setblocking(False)
        self._sockets.add(guest)
        self._loop.add_reader(guest, self._answer, guest)

    def _answer(self, guest: socket.socket) -> None:
        try:
            if hmac.compare_digest(guest.recv(2 * SECRET_BYTES), self.secret):
                socket.send_fds(guest, [b"!"], self._fds)
        except OSError as error:
            log.info("a guest went before it was answered: %s", error)
        finally:
            self._sockets.discard(guest)
            self._dismiss(guest)

    def _dismiss(self, sock: socket.socket) -> None:
        self._loop.remove_reader(sock)
        sock.close()


def receive_fds(name: str, secret: bytes, count: int) -> list[int]:
    """Receive `count` descriptors from the `FdGiver` with this name. Child processes don't inherit
    them. This blocks. Raises `OSError` if it fails.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guest:
        guest.settimeout(RECEIVE_TIMEOUT_S)
        guest.connect(f"\0{name}")
        guest.send(secret)
        _, fds, _, _ = socket.recv_fds(guest, 1, count)
    for fd in fds:
        # In Python 3.11, `recv_fds` ignores its flags, so MSG_CMSG_CLOEXEC has no effect.
        os.set_inheritable(fd, False)
    if len(fds) != count:
        close_fds(fds)
        raise PermissionError("the producer did not hand its memory over")
    return fds


def close_fds(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


def _peer_uid(guest: socket.socket) -> int:
    raw = guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])
