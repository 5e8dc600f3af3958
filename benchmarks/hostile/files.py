"""Creates small files that are very expensive to decode."""

from __future__ import annotations

import io
import struct
import subprocess
import zlib
from functools import cache

import numpy as np
import soundfile
from PIL import Image

_CRC_TABLE: list[int] = []
for _byte in range(256):
    _value = _byte << 24
    for _ in range(8):
        _value = (_value << 1 ^ 0x04C11DB7 if _value & 1 << 31 else _value << 1) & 0xFFFFFFFF
    _CRC_TABLE.append(_value)


def _ogg_crc(page: bytes) -> int:
    value = 0
    for byte in page:
        value = (value << 8 & 0xFFFFFFFF) ^ _CRC_TABLE[value >> 24 ^ byte]
    return value


def ogg_pages(data: bytes) -> list[bytes]:
    """Return the pages of an Ogg file."""
    pages, at = [], 0
    while at < len(data):
        count = data[at + 26]
        size = 27 + count + sum(data[at + 27 : at + 27 + count])
        pages.append(data[at : at + size])
        at += size
    return pages


def ogg_page(page: bytes, content: bytes) -> bytes:
    """Replace the content of a page with a single packet, and update the checksum."""
    lacing = bytes([255] * (len(content) // 255) + [len(content) % 255])
    head = page[:22] + bytes(4) + bytes([len(lacing)]) + lacing
    return head[:22] + struct.pack("<I", _ogg_crc(head + content)) + head[26:] + content


def stretched(data: bytes, seconds: float, rate_hz: int) -> bytes:
    """Repeat the audio pages of an Ogg file up to a duration, and update their checksums."""
    pages = ogg_pages(data)
    heads = [page for page in pages if struct.unpack_from("<q", page, 6)[0] <= 0]
    body = pages[len(heads) + 1 : -1] or pages[len(heads) :]
    first = struct.unpack_from("<q", pages[len(heads)], 6)[0]
    places = [struct.unpack_from("<q", page, 6)[0] for page in body]
    steps = [b - a for a, b in zip([first, *places], places, strict=False)]
    steps = [max(step, 1) for step in steps] if first != places[0] else [first]
    made, place = [*heads, pages[len(heads)]], first
    while place < seconds * rate_hz:
        for page, step in zip(body, steps, strict=False):
            place += step
            made.append(page[:6] + struct.pack("<q", place) + page[14:])
    return b"".join(_numbered(page, number) for number, page in enumerate(made))


def _numbered(page: bytes, number: int) -> bytes:
    kind = bytes([2 if number == 0 else 0])
    page = page[:5] + kind + page[6:18] + struct.pack("<I", number) + bytes(4) + page[26:]
    return page[:22] + struct.pack("<I", _ogg_crc(page)) + page[26:]


def in_webm(data: bytes) -> bytes:
    """Return the packets of an Ogg file in a WebM container."""
    return _webm(data, "ogg", "copy")


def wav_in_webm(data: bytes) -> bytes:
    """Encode a WAV file as Opus in a WebM container."""
    return _webm(data, "wav", "libopus")


def _webm(data: bytes, kind: str, codec: str) -> bytes:
    command = ["ffmpeg", "-v", "error", "-f", kind, "-i", "-", "-c:a", codec, "-f", "webm", "-"]
    return subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout


def sound_file(container: str, subtype: str, channels: int, rate_hz: int, seconds: float) -> bytes:
    """Return a file with silence that libsndfile has written."""
    file = io.BytesIO()
    samples = np.zeros((round(rate_hz * seconds), channels), np.int16)
    soundfile.write(file, samples, rate_hz, subtype, format=container)
    return file.getvalue()


def opus_of_255_channels() -> bytes:
    """Return a file with a single coded stream that is mapped to 255 channels."""
    head, *pages = ogg_pages(sound_file("OGG", "OPUS", 1, 48_000, 1.0))
    told = struct.pack("<8sBBHIhB", b"OpusHead", 1, 255, 312, 48_000, 0, 255)
    return ogg_page(head, told + bytes((1, 0)) + bytes(255)) + b"".join(pages)


def vorbis_at(rate_hz: int) -> bytes:
    """Return a file with a second of audio whose header contains a different sample rate."""
    head, *pages = ogg_pages(sound_file("OGG", "VORBIS", 1, 48_000, 1.0))
    content = head[27 + head[26] :]
    content = content[:12] + struct.pack("<I", rate_hz) + content[16:]
    return ogg_page(head, content) + b"".join(pages)


def mp3_with_junk(frames: int = 8, junk_words: int = 20_000) -> bytes:
    """Return a file in which frames are separated by sync words that do not start a frame."""
    data = sound_file("MP3", "MPEG_LAYER_III", 1, 48_000, 1.0)
    start = data.index(b"\xff\xfb", 500)
    step = data.index(b"\xff\xfb", start + 4) - start
    parts = [data[:start]]
    for number in range(frames):
        parts += [data[start + number * step :][:step], b"\xff\xfb\x00\x00" * junk_words]
    return b"".join(parts)


def png_of(width: int, height: int) -> bytes:
    """Return a PNG file whose header contains these dimensions."""
    data = bytearray(_picture("PNG"))
    data[16:24] = struct.pack(">II", width, height)
    return bytes(data)


def jpeg_of(width: int, height: int) -> bytes:
    """Return a JPEG file whose header contains these dimensions."""
    data = bytearray(_picture("JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def jpeg_of_scans(count: int) -> bytes:
    """Return a JPEG file that repeats its scan."""
    data = _picture("JPEG")
    at = data.index(b"\xff\xda")
    return data[:at] + data[at:-2] * count + data[-2:]


def jpeg_of_segments(count: int, segment: bytes, *, after_size: bool) -> bytes:
    """Return a JPEG file with additional segments or fill bytes before its frame header or its
    scan.
    """
    data = _picture("JPEG")
    at = data.index(b"\xff\xda" if after_size else b"\xff\xc0")
    return data[:at] + segment * count + data[at:]


def png_of_chunks(kind: bytes, count: int, *, after_pixels: bool = False) -> bytes:
    """Return a PNG file with additional empty chunks before or after its pixels."""
    data = _picture("PNG")
    at = data.index(b"IEND" if after_pixels else b"IDAT") - 4
    chunk = bytes(4) + kind + struct.pack(">I", zlib.crc32(kind))
    return data[:at] + chunk * count + data[at:]


def webp_of(width: int, height: int, kind: bytes) -> bytes:
    """Return the start of a WebP file of this type whose header contains these dimensions."""
    if kind == b"VP8X":
        size = bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    elif kind == b"VP8L":
        size = b"\x2f" + (width - 1 | height - 1 << 14).to_bytes(4, "little")
    else:
        size = bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", width, height)
    chunk = kind + struct.pack("<I", len(size)) + size + bytes(16)
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


@cache
def _picture(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (9, 7), 77).save(file, kind)
    return file.getvalue()
