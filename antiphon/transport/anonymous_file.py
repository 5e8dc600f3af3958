"""Memory that two processes share as an anonymous file. The file has no name, and its size can't
change.
"""

from __future__ import annotations

import fcntl
import os

NO_FILES = "this system has no anonymous files"


def has_anonymous_files() -> bool:
    """Return whether this system supports sealed anonymous files. Linux supports them, but macOS
    doesn't.
    """
    return (
        hasattr(os, "memfd_create")
        and hasattr(os, "posix_fallocate")
        and hasattr(fcntl, "F_ADD_SEALS")
    )


def create_sealed(name: str, size_bytes: int) -> int:
    """Return the descriptor of a new file of this size. Raises `OSError` if it can't be created."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _seals())
    except OSError:
        os.close(fd)
        raise
    return fd


def check_sealed(fd: int, size_bytes: int) -> None:
    """Raise `ValueError` if the file could shrink while it is being read, or if its size is
    wrong.
    """
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _seals() != _seals():
        raise ValueError("the memory is not sealed: it could shrink under its reader")
    if size_bytes != os.fstat(fd).st_size:
        raise ValueError(f"the memory is not {size_bytes} bytes large")


def _seals() -> int:
    """Return the seals of a file. The constants for them don't exist on every system."""
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
