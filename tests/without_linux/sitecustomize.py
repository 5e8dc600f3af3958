"""Python imports this module at its start and it removes what only Linux has, as on macOS.

This covers constants and functions of the standard library, functions of libc, /proc, abstract
names and packets of Unix sockets, and limits that macOS rejects. `sys.platform` and the wheels
that are installed remain those of Linux.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import io
import mmap
import os
import resource
import select
import selectors
import signal
import socket
from typing import Any

MODULES = {
    os: ("memfd_create", "eventfd", "pidfd_", "posix_fadvise", "posix_fallocate", "sched_"),
    fcntl: ("F_SEAL_", "F_ADD_SEALS", "F_GET_SEALS", "F_SETPIPE_SZ"),
    mmap: ("MADV_NOHUGEPAGE", "MADV_HUGEPAGE", "MADV_POPULATE", "MAP_POPULATE"),
    resource: ("prlimit", "RLIMIT_NICE", "RLIMIT_RT", "RLIMIT_MSGQUEUE", "RLIMIT_SIGPENDING"),
    select: ("epoll", "EPOLL"),
    selectors: ("EpollSelector",),
    signal: ("pidfd_send_signal", "SIGRTMIN", "SIGRTMAX", "SIGPWR", "sigtimedwait"),
    socket: ("SO_PEERCRED", "SO_BINDTODEVICE", "TCP_USER_TIMEOUT", "TCP_QUICKACK", "AF_NETLINK"),
}
"""Prefixes of the names that each module loses."""
LINUX_PATHS = ("/proc", "/sys", "/dev/shm")
LIBC = ("prctl", "mallopt", "memfd_create")
OPEN_MAX = 10_240
ADDRESS_SPACE = 1 << 40
"""The least limit that is accepted: each process has more address space than a decoder may use."""


class BareLibrary(ctypes.CDLL):
    """A library without functions that only glibc and Linux have."""

    def __getattr__(self, name: str) -> Any:
        if name in LIBC:
            raise AttributeError(name)
        return super().__getattr__(name)


def _without_paths(call: Any) -> Any:
    def checked(path: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(LINUX_PATHS):
            raise FileNotFoundError(errno.ENOENT, "not on this system", str(path))
        return call(path, *args, **kwargs)

    return checked


class PathSocket(socket.socket):
    """A socket whose Unix addresses are paths, of up to 103 bytes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.family == socket.AF_UNIX and self.type == socket.SOCK_SEQPACKET:
            self.close()
            raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")

    def _checked(self, address: Any) -> Any:
        if self.family == socket.AF_UNIX:
            name = os.fsencode(address)
            if not name or name[0] == 0:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")
            if len(name) > 103:
                raise OSError("AF_UNIX path too long")
        return address

    def bind(self, address: Any) -> None:
        super().bind(self._checked(address))

    def connect(self, address: Any) -> None:
        super().connect(self._checked(address))


def _socketpair(*args: Any, **kwargs: Any) -> Any:
    if socket.SOCK_SEQPACKET in (*args, *kwargs.values()):
        raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")
    return _pair(*args, **kwargs)


def _getrlimit(limit: int) -> tuple[int, int]:
    soft, hard = _get(limit)
    return (soft, resource.RLIM_INFINITY) if limit == resource.RLIMIT_NOFILE else (soft, hard)


def _setrlimit(limit: int, values: tuple[int, int]) -> None:
    soft, hard = values
    if limit == resource.RLIMIT_NOFILE and not 0 <= soft <= OPEN_MAX:
        raise ValueError("current limit exceeds maximum limit")
    if limit == resource.RLIMIT_AS and 0 <= soft < ADDRESS_SPACE:
        raise ValueError("current limit exceeds maximum limit")
    real = _get(limit)[1]
    _set(limit, (soft, min(hard, real) if hard >= 0 <= real else real))


for module, prefixes in MODULES.items():
    for name in list(vars(module)):
        if name.startswith(prefixes):
            delattr(module, name)
selectors.DefaultSelector = selectors.PollSelector
ctypes.CDLL = BareLibrary
for place, name in ((os, "open"), (os, "stat"), (os, "listdir"), (io, "open"), (builtins, "open")):
    setattr(place, name, _without_paths(getattr(place, name)))
socket.socket = PathSocket
_pair, socket.socketpair = socket.socketpair, _socketpair
_get, resource.getrlimit = resource.getrlimit, _getrlimit
_set, resource.setrlimit = resource.setrlimit, _setrlimit
