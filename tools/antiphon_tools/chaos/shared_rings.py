"""The rings through which the stages exchange messages, as a process sees them that damages them.

Both ends of a ring keep a descriptor of its memory, so the memory can be opened through `/proc`.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

_MEMORY = "/memfd:antiphon-ring (deleted)"


def damage_rings(pid: int, chance: random.Random) -> int:
    """Overwrite all rings of a process with random bytes. Returns the number of rings.

    This damages the entries that haven't been read. Entries that are written later are intact.
    """
    found: set[int] = set()
    # The process may end or close a ring in the meantime.
    with suppress(OSError):
        for path in Path("/proc", str(pid), "fd").iterdir():
            with suppress(OSError):
                if os.readlink(path) == _MEMORY:
                    _overwrite(path, chance, found)
    return len(found)


def _overwrite(path: Path, chance: random.Random, found: set[int]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        memory = os.fstat(fd)
        if memory.st_ino not in found:
            found.add(memory.st_ino)
            os.pwrite(fd, chance.randbytes(memory.st_size), 0)
    finally:
        os.close(fd)
