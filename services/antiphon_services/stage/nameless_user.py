"""Supports users without an entry in /etc/passwd. Some clusters, such as OpenShift, run containers
as such users.

Some libraries look up the user's name, or a home directory in which to store compiled code. Without
an entry, Python raises an error.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from pathlib import Path

# The environment variables that `getpass.getuser` checks before it asks the operating system.
_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


def settle_user() -> None:
    """Set a user name and a writable home directory in the environment if they are missing.

    Call this function before importing libraries that need them.
    """
    if not any(os.environ.get(name) for name in _NAMES) and not _is_known():
        os.environ["USER"] = f"uid_{os.getuid()}"
    home = Path(os.path.expanduser("~"))
    if not (home.is_absolute() and home.is_dir() and os.access(home, os.W_OK)):
        os.environ["HOME"] = str(_own_directory())


def _is_known() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def _own_directory() -> Path:
    """Return a directory inside the temporary directory that belongs to this user. It stays the
    same after a restart.

    Because files in this directory are executed, it isn't used if it was created by another user or
    if other users can write to it.
    """
    made = Path(tempfile.gettempdir()) / f"antiphon-home-{os.getuid()}"
    made.mkdir(mode=0o700, exist_ok=True)
    found = made.lstat()
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return made if own else Path(tempfile.mkdtemp(prefix="antiphon-home-"))
