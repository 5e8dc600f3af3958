"""Reads an image's width and height, and the number of pieces in its file, without decoding it."""

from __future__ import annotations

import struct
from collections import Counter
from typing import NamedTuple

MAX_SCANS = 64
"""The maximum number of scans in a JPEG file. A decoder processes all pixels again for each scan.
Encoders write about ten scans.
"""
MAX_SEGMENTS = 10_000
"""The maximum number of segments before the first scan of a JPEG file. Python decoders process each
of them, including fill bytes.
"""
MAX_CHUNKS = 16_384
"""The maximum number of chunks in a PNG file, for the same reason. A file of 64 MB has this many
chunks if each chunk is 4 KiB, which is the smallest size that encoders write.
"""

_PNG_SIGNATURE_BYTES = 8
_MARKER = 0xFF
_START_OF_SCAN = 0xDA
# Markers at the start of a frame. These are C0 to CF, except for tables (C4), extensions (C8) and
# conditioning (CC).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers that are not followed by a length.
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})


class ImageSize(NamedTuple):
    """A size in pixels."""

    width: int
    height: int


def png_size(data: bytes) -> ImageSize | None:
    """Return the size in the first chunk of a PNG file, or None if it is missing."""
    if data[12:16] != b"IHDR" or len(data) < 24:
        return None
    return ImageSize(*struct.unpack_from(">II", data, 16))


def jpeg_size(data: bytes) -> ImageSize | None:
    """Return the size in the frame header of a JPEG file. Returns None if there is no frame header
    before the first scan.
    """
    at = 2
    while at + 4 <= len(data):
        if data[at] != _MARKER:
            return None
        kind = data[at + 1]
        if kind == _MARKER or kind in _BARE:
            at += 1 if kind == _MARKER else 2
            continue
        if kind in _FRAMES and at + 9 <= len(data):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return ImageSize(width, height)
        if kind == _START_OF_SCAN:
            return None
        at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
    return None


def jpeg_scans(data: bytes) -> int:
    """Return an upper bound for the number of scans in a JPEG file. This works because, within a
    scan, every FF byte is followed by 0.
    """
    return data.count(bytes((_MARKER, _START_OF_SCAN)))


def jpeg_segments(data: bytes) -> int:
    """Return the number of segments, fill bytes and stray bytes before the first scan of a JPEG
    file.

    Counting stops once the number exceeds `MAX_SEGMENTS`.
    """
    at, found = 2, 0
    while at + 2 <= len(data) and found <= MAX_SEGMENTS:
        kind = data[at + 1]
        if data[at] != _MARKER or kind == _MARKER:
            at += 1
        elif kind == _START_OF_SCAN:
            break
        elif kind == 0 or kind in _BARE:
            at += 2
        else:
            at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
        found += 1
    return found


def png_chunks(data: bytes) -> Counter[bytes]:
    """Return the number of chunks of each type in a PNG file.

    Counting stops once the number exceeds `MAX_CHUNKS`.
    """
    at, found = _PNG_SIGNATURE_BYTES, 0
    kinds: Counter[bytes] = Counter()
    while at + 8 <= len(data) and found <= MAX_CHUNKS:
        size, kind = struct.unpack_from(">I4s", data, at)
        kinds[kind] += 1
        found += 1
        # The length, the type and the checksum.
        at += 12 + size
    return kinds


def webp_size(data: bytes) -> ImageSize | None:
    """Return the canvas size of a WebP file. If there is no canvas, return the size of its only
    frame.
    """
    kind = data[12:16]
    if kind == b"VP8X" and len(data) >= 30:
        width, height = (int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
        return ImageSize(width + 1, height + 1)
    if kind == b"VP8L" and len(data) >= 25 and data[20] == 0x2F:
        bits = int.from_bytes(data[21:25], "little")
        return ImageSize((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 " and len(data) >= 30 and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return ImageSize(width & 0x3FFF, height & 0x3FFF)
    return None
