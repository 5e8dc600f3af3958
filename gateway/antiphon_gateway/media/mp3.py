"""MPEG audio frames. Only headers are read, in order to determine the length and number
of frames.
"""

from __future__ import annotations

from mmap import mmap

HEADER_BYTES = 4

_KBITS = {
    # The values that the four bits in a header represent. The key consists of whether the version
    # is 1, and of the layer.
    (True, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES_HZ = (44_100, 48_000, 32_000)
_RATE_DIVISORS = {3: 1, 2: 2, 0: 4}
"""Maps the two version bits in the header to the divisor of the sample rate. The bits stand for
versions 1, 2 and 2.5.
"""


def frame_at(data: bytes | mmap, place: int) -> tuple[int, int]:
    """Return the number of bytes and samples in the frame at this position. If there is no header,
    both are 0.
    """
    head = data[place : place + HEADER_BYTES]
    if len(head) < HEADER_BYTES or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return 0, 0
    version, layer = head[1] >> 3 & 3, 4 - (head[1] >> 1 & 3)
    kbits, rate, padding = head[2] >> 4, head[2] >> 2 & 3, head[2] >> 1 & 1
    if version == 1 or layer == 4 or kbits in (0, 15) or rate == 3:
        return 0, 0
    first = version == 3
    samples = 384 if layer == 1 else 1152 if layer == 2 or first else 576
    bits_per_s = _KBITS[first, layer][kbits] * 1000
    rate_hz = _RATES_HZ[rate] // _RATE_DIVISORS[version]
    if layer == 1:
        return (12 * bits_per_s // rate_hz + padding) * 4, samples
    return samples // 8 * bits_per_s // rate_hz + padding, samples


def has_more_than(data: bytes | mmap, samples: int) -> bool:
    """Return whether the consecutive frames at the start of the file, after any tag, contain more
    samples than this.

    No more frames are read than necessary.
    """
    place = tag_bytes(data)
    total = 0
    while total <= samples:
        size, more = frame_at(data, place)
        if not size:
            return False
        place += size
        total += more
    return True


def tag_bytes(data: bytes | mmap) -> int:
    """Return the length of the ID3 tag at the start. The length is stored in four bytes, with seven
    bits each.
    """
    if data[:3] != b"ID3" or len(data) < 10:
        return 0
    size = 0
    for each in data[6:10]:
        size = size << 7 | each & 0x7F
    return 10 + size
