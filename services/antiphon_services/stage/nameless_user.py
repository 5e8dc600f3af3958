"""A user without an entry in /etc/passwd, as clusters choose them (OpenShift).

Libraries ask for a user's name and for a home directory to keep compiled code in; Python raises
where it finds none.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from pathlib import Path

# Where `getpass.getuser` looks before it asks the system.
_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


def settle_user() -> None:
    """Give this process and its children a user's name and a home directory that can be written
    to, by the environment, where they have none. Before libraries are imported that ask."""
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
    """A directory of this user alone below the temporary one, the same after a restart.

    What lies in it is run, so one that others made, or may write to, is not taken.
    """
    made = Path(tempfile.gettempdir()) / f"antiphon-home-{os.getuid()}"
    made.mkdir(mode=0o700, exist_ok=True)
    found = made.lstat()
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return made if own else Path(tempfile.mkdtemp(prefix="antiphon-home-"))
