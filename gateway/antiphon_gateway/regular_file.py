"""Small files that the gateway reads while it serves."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from antiphon.errors import InvalidArgument


class UnreadableFile(InvalidArgument):
    """A file cannot be read now. It may be readable later without a change."""


def read_regular(path: Path, *, most_bytes: int, field: str) -> bytes:
    """The content of a regular file, or of a link to one.

    Raises `InvalidArgument` with the field for another kind of file and for one of more bytes, and
    `UnreadableFile` for one that cannot be read. A FIFO would otherwise block until it has a
    writer.
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
