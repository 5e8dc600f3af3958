"""The temporary directory of a launcher, which contains its configuration, keys, and the data that
its gateways share.

The launcher holds a lock (flock) on the directory for as long as it runs, and the kernel releases
this lock even if the launcher is killed. Each launcher that starts removes the user's directories
whose lock is free. systemd-tmpfiles also respects the lock, so it doesn't remove old files from the
directory of a running launcher.

If the file system doesn't support this lock, directories of killed launchers remain. The parent
directory (TMPDIR) must not be shared by several hosts. A network file system may only apply the
lock on one host, so that launchers of other hosts would remove the directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from antiphon.errors import FailedPrecondition

PREFIX = "antiphon-launcher-"
ATTEMPTS = 100
"""The maximum number of new directories that other launchers may remove before they are locked."""
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)


@contextlib.contextmanager
def runtime_directory() -> Iterator[Path]:
    """Return a context manager for a new directory that only the current user can access. First,
    the directories of launchers that are no longer running are removed.

    Raises `FailedPrecondition` if the directory can't be created.
    """
    try:
        _remove_abandoned(Path(tempfile.gettempdir()))
        path, lock = _new_directory()
    except OSError as error:
        remedy = ""
        if error.errno in _NOT_WRITABLE:
            remedy = "; set TMPDIR to a directory that this user can write to"
        raise FailedPrecondition(
            f"can't create a temporary directory: {error.strerror}{remedy}"
        ) from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _new_directory() -> tuple[Path, int]:
    """Create a directory and lock it. Returns its path and the descriptor that holds the lock."""
    for _ in range(ATTEMPTS):
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        # Until the directory is locked, another launcher may lock and remove it.
        try:
            lock = _open(path)
        except FileNotFoundError:
            continue
        except OSError:
            path.rmdir()
            raise
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        except OSError:
            # No launcher can lock directories on this file system, so none removes them.
            pass
        if path.exists():
            return path, lock
        os.close(lock)
    raise FileNotFoundError(errno.ENOENT, "other processes remove it")


def _remove_abandoned(parent: Path) -> None:
    """Remove the directories of the current user's launchers that are no longer running. What can't
    be removed remains.
    """
    for path in sorted(parent.glob(f"{PREFIX}*")):
        # What can't be opened isn't a directory or belongs to another user.
        with contextlib.suppress(OSError):
            directory = _open(path)
            try:
                if _is_private(os.fstat(directory)):
                    # This fails if a launcher is running or another one removes the directory.
                    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(directory)


def _open(path: Path) -> int:
    """Open a directory. Raises `OSError` if the path is a symbolic link or not a directory."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _is_private(status: os.stat_result) -> bool:
    """Return whether only the current user can access a directory."""
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
