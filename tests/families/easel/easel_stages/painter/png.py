"""A PNG file of grey pixels. Pure."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt
from easel import Lines

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def paint(lines: Lines, size: str) -> npt.NDArray[np.uint8]:
    """The pixels [height, width]: the lines from left to right, again and again."""
    width, height = map(int, size.split("x"))
    lines = lines if len(lines) else np.zeros(1, np.uint16)
    return np.resize(lines.astype(np.uint8), (height, width))


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """The file."""
    height, width = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    crc = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + crc
