"""Small files that the gateway reads while it is running."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from antiphon.errors import InvalidArgument


class UnreadableFile(InvalidArgument):
    """A file cannot be read now. It may become readable later without being changed."""


def read_regular(path: Path, *, most_bytes: int, field: str) -> bytes:
    """Return the content of a regular file or of a link to one.

    Raises `InvalidArgument` with the field if it is another type of file or larger than allowed,
    and `UnreadableFile` if it cannot be read. Without this check, a FIFO would block until it has a
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
