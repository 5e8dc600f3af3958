"""Width and height of an image, and how many pieces its file has, without decoding it."""

from __future__ import annotations

import struct
from collections import Counter
from typing import NamedTuple

MAX_SCANS = 64
"""Of a JPEG file. Each makes a decoder go through all pixels again; encoders write about ten."""
MAX_SEGMENTS = 10_000
"""Of a JPEG file before its first scan. Decoders in Python visit each, fill bytes too."""
MAX_CHUNKS = 16_384
"""Of a PNG file, for the same reason. A file of 64 MB in pieces of 4 KiB, the smallest that
encoders write, has as many."""

_PNG_SIGNATURE_BYTES = 8
_MARKER = 0xFF
_START_OF_SCAN = 0xDA
# Markers that begin a frame: C0 to CF but for tables (C4), extensions (C8) and conditioning (CC).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers without a length behind them.
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})


class ImageSize(NamedTuple):
    """Pixels."""

    width: int
    height: int


def png_size(data: bytes) -> ImageSize | None:
    """The size in a PNG file's first chunk; None when it is not there."""
    if data[12:16] != b"IHDR" or len(data) < 24:
        return None
    return ImageSize(*struct.unpack_from(">II", data, 16))


def jpeg_size(data: bytes) -> ImageSize | None:
    """The size in a JPEG file's frame header; None when there is none before the first scan."""
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
    """Return an upper limit of the scans of a JPEG file: within a scan, a 0 follows each byte
    FF."""
    return data.count(bytes((_MARKER, _START_OF_SCAN)))


def jpeg_segments(data: bytes) -> int:
    """How many segments, fill bytes and stray bytes come before the first scan of a JPEG file.

    Stops counting above `MAX_SEGMENTS`.
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
    """How many chunks of each type a PNG file has.

    Stops counting above `MAX_CHUNKS`.
    """
    at, found = _PNG_SIGNATURE_BYTES, 0
    kinds: Counter[bytes] = Counter()
    while at + 8 <= len(data) and found <= MAX_CHUNKS:
        size, kind = struct.unpack_from(">I4s", data, at)
        kinds[kind] += 1
        found += 1
        # Length, type and checksum.
        at += 12 + size
    return kinds


def webp_size(data: bytes) -> ImageSize | None:
    """The size of a WebP file's canvas or, without one, of its only frame."""
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
