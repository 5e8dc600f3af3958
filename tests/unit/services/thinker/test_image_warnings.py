"""What image files make Pillow warn of is not written: a file could make thousands of lines."""

from __future__ import annotations

import io
import struct
import subprocess
import sys

from PIL import Image

READ = """
import sys
import numpy as np
from antiphon_services.thinker.vision import Sizes, measure_image
from antiphon.errors import InvalidArgument
sizes = Sizes(28, 4 * 28 * 28, 1280 * 28 * 28)
while size := int.from_bytes(sys.stdin.buffer.read(4)):
    file = np.frombuffer(sys.stdin.buffer.read(size), np.uint8)
    try:
        measure_image(sizes, file, "image.0").pixels()
        print("decoded")
    except InvalidArgument as error:
        print("refused")
"""


def jpeg_with(*segments: bytes) -> bytes:
    """A JPEG file with more APP segments, each with its marker's number before its content."""
    out = io.BytesIO()
    Image.new("RGB", (64, 48), 77).save(out, "JPEG")
    data = out.getvalue()
    made = b"".join(
        b"\xff" + each[:1] + struct.pack(">H", len(each) + 1) + each[1:] for each in segments
    )
    return data[:2] + made + data[2:]


def directory(entries: list[tuple[int, int, int, int]]) -> bytes:
    """A TIFF file of one directory: tag, type, count and value of each entry."""
    packed = b"".join(struct.pack("<HHII", *each) for each in entries)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + packed + bytes(4)


def png_with(*chunks: bytes) -> bytes:
    """A PNG file with more chunks, each its type and content, before its pixels."""
    import zlib

    out = io.BytesIO()
    Image.new("RGB", (64, 48), 77).save(out, "PNG")
    data = out.getvalue()
    at = data.index(b"IDAT") - 4
    made = b"".join(
        struct.pack(">I", len(each) - 4) + each + struct.pack(">I", zlib.crc32(each))
        for each in chunks
    )
    return data[:at] + made + data[at:]


FILES = {
    "entries beyond the file": jpeg_with(
        b"\xe1Exif\0\0" + directory([(0x112, 3, 60_000, 0xFFFFFFF0), (300, 7, 5_000, 8_000)])
    ),
    "too many values": jpeg_with(
        b"\xe1Exif\0\0" + directory([(0x112, 3, 2, 0x10006), (0x100, 4, 7, 8), (0x101, 4, 9, 8)])
    ),
    "no directory": jpeg_with(b"\xe1Exif\0\0II*\0\x08\0\0\0\xff"),
    "no other pictures": jpeg_with(b"\xe2MPF\0" + directory([(0xB001, 4, 1, 9)])),
    "no frames": png_with(b"acTL" + struct.pack(">II", 1 << 31, 0)),
    "frames twice": png_with(*[b"acTL" + struct.pack(">II", 5, 0)] * 2),
}


def test_what_pillow_warns_of_is_not_written() -> None:
    given = b"".join(struct.pack(">I", len(each)) + each for each in FILES.values())
    reader = subprocess.run(
        [sys.executable, "-W", "always", "-c", READ], input=given + bytes(4), capture_output=True
    )
    assert reader.returncode == 0, reader.stderr.decode()
    assert len(reader.stdout.split()) == len(FILES)
    assert [each for each in reader.stderr.decode().splitlines() if "PIL" in each] == []
