"""Lists the files that this process has open. Only works on Linux."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress


def open_files() -> list[str]:
    """Return the target of each open descriptor, which is a path or the type of a socket or
    anonymous file.

    Descriptors that are closed during the call are omitted, including the one used to list the
    others.
    """
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def opened_since(before: list[str]) -> Counter[str]:
    """Return the open files that `before`, an earlier result of `open_files`, does not list.

    Files that were closed since then are ignored, because other threads of the process, such as
    those of gRPC, may close theirs at any time.
    """
    return Counter(open_files()) - Counter(before)
