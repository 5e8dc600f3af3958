"""Names for the Unix sockets between the front of the gRPC endpoint and the gRPC server.

Linux supports abstract names. An abstract name isn't a file and disappears when its socket is
closed. Other systems, such as macOS, only support paths. On these systems, the sockets are placed
in a directory that only the current user can access. If the process is killed, this directory is
left behind.
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
"""The maximum length of a socket path. macOS allows 103 bytes, and Linux allows 107."""
_NAME_BYTES = 8
_LONGEST_NAME = len("antiphon-client-") + 2 * _NAME_BYTES


class SocketNames:
    """Creates socket names. On systems without abstract names, `close` removes the directory that
    contains the sockets.
    """

    def __init__(self) -> None:
        self._abstract = has_abstract_names()
        self._folder: str | None = None

    def new(self, kind: str) -> SocketName:
        """Return a new, unique name that other users can't guess.

        Raises `Unavailable` if the path would be too long in every available directory.
        """
        name = f"antiphon-{kind}-{secrets.token_hex(_NAME_BYTES)}"
        if self._abstract:
            return SocketName(name)
        if self._folder is None:
            self._folder = _make_folder()
        return SocketName(os.path.join(self._folder, name))

    def close(self) -> None:
        """Remove the directory. Existing connections are not affected."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class SocketName:
    """The name of a socket. It is a path if it begins with "/", and an abstract name otherwise."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_path = name.startswith("/")

    @property
    def address(self) -> str:
        """The address to pass to `bind` and `connect`."""
        return self._name if self._is_path else f"\0{self._name}"

    @property
    def uri(self) -> str:
        """The address in the format that gRPC uses, including where it reports the socket as a
        peer.
        """
        return f"{'unix' if self._is_path else 'unix-abstract'}:{self._name}"

    def unlink(self) -> None:
        """If the name is a path, remove its file. Existing connections keep their name."""
        if self._is_path:
            with contextlib.suppress(OSError):
                os.unlink(self._name)


def has_abstract_names() -> bool:
    """Return whether this system supports abstract Unix socket names."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(f"\0antiphon-probe-{secrets.token_hex(_NAME_BYTES)}")
        except OSError:
            return False
    return True


def _make_folder() -> str:
    """Create a directory for sockets, with mode 0700.

    Raises `Unavailable` if the socket paths would be too long in every available directory.
    """
    for parent in (tempfile.gettempdir(), "/tmp"):
        with contextlib.suppress(OSError):
            folder = tempfile.mkdtemp(prefix="antiphon-", dir=os.path.abspath(parent))
            if len(os.fsencode(folder)) + 1 + _LONGEST_NAME <= MAX_PATH_BYTES:
                return folder
            os.rmdir(folder)
    raise Unavailable(
        "gateway.grpc_listen: can't create a directory for Unix sockets in "
        f"{tempfile.gettempdir()} or /tmp with paths of at most {MAX_PATH_BYTES} bytes; set "
        "TMPDIR",
        field="gateway.grpc_listen",
    )
