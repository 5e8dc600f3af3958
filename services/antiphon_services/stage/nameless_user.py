"""Supports users that have no entry in /etc/passwd. Some clusters, such as OpenShift, assign such
users.

Some libraries look up the name of the user, or a home directory for compiled code. Python raises an
error if there is none.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from pathlib import Path

# Environment variables that `getpass.getuser` reads before it asks the system.
_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


def settle_user() -> None:
    """Set a user name and a writable home directory in the environment if they are missing.

    Call this before libraries that need them are imported.
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
    """Return a directory of this user inside the temporary directory. It remains the same after a
    restart.

    Its content is executed. Therefore a directory that other users have created or can write to is
    not used.
    """
    made = Path(tempfile.gettempdir()) / f"antiphon-home-{os.getuid()}"
    made.mkdir(mode=0o700, exist_ok=True)
    found = made.lstat()
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return made if own else Path(tempfile.mkdtemp(prefix="antiphon-home-"))
