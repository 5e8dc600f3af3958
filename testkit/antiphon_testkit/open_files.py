"""What this process has open. On Linux."""

from __future__ import annotations

import os
from contextlib import suppress


def open_files() -> list[str]:
    """What each open descriptor leads to: a path, or a socket or anonymous file by its kind.

    Other threads may close some meanwhile, and the listing's own is closed after it; those are
    left out.
    """
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found
