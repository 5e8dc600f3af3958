"""Reads the header of a safetensors file without torch."""

from __future__ import annotations

import struct
from pathlib import Path

MAX_HEADER_BYTES = 100_000_000
PREFIX_BYTES = 8


def read_header(path: Path) -> bytes:
    """Return the length prefix and the JSON header of a safetensors file. Raises `ValueError` if
    either is invalid.
    """
    with path.open("rb") as file:
        prefix = file.read(PREFIX_BYTES)
        length = header_length(prefix)
        if length is None:
            raise ValueError(f"{path}: is not a safetensors file")
        return prefix + file.read(length - PREFIX_BYTES)


def header_length(start: bytes) -> int | None:
    """Return the combined size of the length prefix and the header, given the first bytes of a
    file. Returns None if the header isn't valid.
    """
    if len(start) < PREFIX_BYTES:
        return None
    (length,) = struct.unpack("<Q", start[:PREFIX_BYTES])
    return None if length > MAX_HEADER_BYTES else PREFIX_BYTES + int(length)
