"""Real small files of every kind that a request may carry, and how to mutate them."""

from __future__ import annotations

import io
from random import Random
from typing import Any

import numpy as np
import soundfile
from PIL import Image

PLAIN = ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")
PACKED = ("IMA_ADPCM", "MS_ADPCM", "GSM610", "G721_32")


def wav(random: Random) -> bytes:
    """A real WAV file of any encoding that libsndfile writes."""
    subtype = random.choice((*PLAIN, *PACKED))
    channels = random.choice((1, 1, 2, 5)) if subtype in PLAIN else 1
    rate = random.choice((1_000, 8_000, 16_000, 44_100, 192_000))
    samples = np.sin(np.arange(random.choice((1, 30, 800, 4_000))) / 7)
    file = io.BytesIO()
    soundfile.write(
        file, np.stack([samples] * channels, axis=1), rate, subtype=subtype, format="WAV"
    )
    return file.getvalue()


def packed(random: Random) -> tuple[bytes, str]:
    """A real file of another format, and what a client calls it."""
    container, subtype, name = random.choice(
        (
            ("MP3", "MPEG_LAYER_III", "mp3"),
            ("FLAC", "PCM_16", "flac"),
            ("OGG", "VORBIS", "ogg"),
            ("OGG", "OPUS", "opus"),
        )
    )
    samples = np.sin(np.arange(random.choice((1, 30, 800, 4_000))) / 7)
    file = io.BytesIO()
    soundfile.write(file, samples, random.choice((8_000, 16_000)), subtype, format=container)
    return file.getvalue(), name


def picture(random: Random) -> bytes:
    """A real PNG, JPEG or WebP file."""
    file = io.BytesIO()
    size = random.choice(((1, 1), (9, 7), (40, 30)))
    Image.new(random.choice(("RGB", "L")), size, 77).save(
        file, random.choice(("PNG", "JPEG", "WEBP"))
    )
    return file.getvalue()


def _box(name: bytes, content: bytes) -> bytes:
    return (8 + len(content)).to_bytes(4, "big") + name + content


def film(random: Random) -> bytes:
    """An MP4 file as far as its boxes go."""
    head = _box(b"mvhd", bytes(12) + (1000).to_bytes(4, "big") + random.randbytes(84))
    sizes = _box(b"stsz", bytes(8) + (2).to_bytes(4, "big") + random.randbytes(8))
    track = _box(b"trak", _box(b"mdia", _box(b"minf", _box(b"stbl", sizes))))
    kind = _box(b"ftyp", b"isom" + bytes(4) + b"mp41")
    return kind + _box(b"moov", head + track) + _box(b"mdat", random.randbytes(300))


def mutated(data: bytes, random: Random, most: int = 4) -> bytes:
    """The bytes with a few of them changed, cut, repeated or put in."""
    out = bytearray(data)
    for _ in range(random.randint(1, most)):
        place = random.randrange(len(out) + 1)
        match random.randrange(7):
            case 0:
                out[place : place + 1] = random.randbytes(1)
            case 1:
                del out[place:]
            case 2:
                del out[place : place + random.randint(1, 40)]
            case 3:
                out[place:place] = random.randbytes(random.randint(1, 40))
            case 4:
                piece = out[place : place + random.randint(1, 200)]
                out[place:place] = piece * random.randint(1, 20)
            case 5:
                number = random.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF))
                order: Any = random.choice(("little", "big"))
                out[place : place + 4] = number.to_bytes(4, order)
            case _:
                out[place : place + 1] = random.choice((b"\0", b"\xff", b'"', b"\\", b"{", b"\r\n"))
    return bytes(out)
