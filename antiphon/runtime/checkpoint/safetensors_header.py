"""Reads the header of a safetensors file without torch."""

from __future__ import annotations

import struct
from pathlib import Path

MAX_HEADER_BYTES = 100_000_000


def read_header(path: Path) -> bytes:
    """Return the length prefix and the JSON header of a safetensors file. Raises `ValueError` if
    they are invalid.
    """
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else MAX_HEADER_BYTES + 1
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"{path}: is not a safetensors file")
        return prefix + file.read(length)
