"""Reads small files that can change while the gateway is running."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from antiphon.errors import InvalidArgument


class UnreadableFile(InvalidArgument):
    """Raised if a file can't currently be read. Trying again later may help, even if the file
    hasn't changed.
    """


def read_regular(path: Path, *, most_bytes: int, field: str) -> bytes:
    """Return the content of a regular file. Symbolic links are followed.

    Raises `InvalidArgument` if the path isn't a regular file or the file is too large, and
    `UnreadableFile` if the file can't be read. The type of the file is checked first, because
    opening a FIFO without a writer would block.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidArgument(f"{field}: {path}: is not a regular file", field=field)
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise UnreadableFile(f"{field}: {path}: {error.strerror}", field=field) from error
    if len(content) > most_bytes:
        raise InvalidArgument(f"{field}: {path}: has more than {most_bytes} bytes", field=field)
    return content


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
