"""The names of the Unix sockets between the front of the gRPC endpoint and gRPC.

Linux has abstract names, which belong to no file and end with their socket. Other systems, such as
macOS, only have paths. There, the sockets are in a directory that only this user can open. A
process that is killed leaves this directory behind.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile

from antiphon.errors import Unavailable

MAX_PATH_BYTES = 103
"""The longest path of a socket: 103 bytes on macOS, and 107 on Linux."""
_NAME_BYTES = 8
_LONGEST_NAME = len("antiphon-client-") + 2 * _NAME_BYTES


class SocketNames:
    """Creates names for sockets. `close` removes the directory of the paths, if there is one."""

    def __init__(self) -> None:
        self._abstract = has_abstract_names()
        self._folder: str | None = None

    def new(self, kind: str) -> SocketName:
        """Return a name that no other socket has and that other users cannot guess.

        Raises `Unavailable` if there is no directory in which its path is short enough.
        """
        name = f"antiphon-{kind}-{secrets.token_hex(_NAME_BYTES)}"
        if self._abstract:
            return SocketName(name)
        if self._folder is None:
            self._folder = _make_folder()
        return SocketName(os.path.join(self._folder, name))

    def close(self) -> None:
        """Remove the directory. Sockets that are connected remain so."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class SocketName:
    """The name of a socket: an abstract name, or a path if it begins with "/"."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_path = name.startswith("/")

    @property
    def address(self) -> str:
        """The address for `bind` and `connect`."""
        return self._name if self._is_path else f"\0{self._name}"

    @property
    def uri(self) -> str:
        """The address in gRPC's form, also where gRPC names the socket as a peer."""
        return f"{'unix' if self._is_path else 'unix-abstract'}:{self._name}"

    def unlink(self) -> None:
        """Remove the file of a path. A connection that has been made keeps its name."""
        if self._is_path:
            with contextlib.suppress(OSError):
                os.unlink(self._name)


def has_abstract_names() -> bool:
    """Return whether this system has Unix sockets without files."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(f"\0antiphon-probe-{secrets.token_hex(_NAME_BYTES)}")
        except OSError:
            return False
    return True


def _make_folder() -> str:
    """Create a directory for sockets (mode 0700).

    Raises `Unavailable` if there is no place in which their paths are short enough.
    """
    for parent in (tempfile.gettempdir(), "/tmp"):
        with contextlib.suppress(OSError):
            folder = tempfile.mkdtemp(prefix="antiphon-", dir=os.path.abspath(parent))
            if len(os.fsencode(folder)) + 1 + _LONGEST_NAME <= MAX_PATH_BYTES:
                return folder
            os.rmdir(folder)
    raise Unavailable(
        "gateway.grpc_listen: no directory for Unix sockets can be created in "
        f"{tempfile.gettempdir()} or /tmp with paths of at most {MAX_PATH_BYTES} bytes; set TMPDIR",
        field="gateway.grpc_listen",
    )
