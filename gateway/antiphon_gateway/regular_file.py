"""Reads small files while the gateway is running."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from antiphon.errors import InvalidArgument


class UnreadableFile(InvalidArgument):
    """Raised if a file cannot be read at the moment. A later attempt may succeed even if the file
    has not changed.
    """


def read_regular(path: Path, *, most_bytes: int, field: str) -> bytes:
    """Return the content of a regular file, following symbolic links.

    Raises `InvalidArgument` if the path is not a regular file or the file is too large, and
    `UnreadableFile` if it cannot be read. Checking the type of the file first avoids blocking on a
    FIFO that has no writer.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidArgument(f"{field}: {path}: is not a regular file", field=field)
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise UnreadableFile(f"{field}: {path}: {error.strerror}", field=field) from error
    if len(content) > most_bytes:
        raise InvalidArgument(f"{field}: {path}: more than {most_bytes} bytes", field=field)
    return content


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
