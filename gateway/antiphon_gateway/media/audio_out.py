"""Audio to a client: float32 to 16-bit samples, WAV files, and base64 that joins up."""

from __future__ import annotations

import struct

import numpy as np
import pybase64

from antiphon.values.chunk import Tensor

SAMPLE_BYTES = 2
BASE64_GROUP_BYTES = 6
"""Whole samples (2 bytes) and whole base64 groups (3 bytes)."""

_WAV_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_UNKNOWN_BYTES = (1 << 32) - 1 - _WAV_HEADER.size


def pcm16_of(samples: Tensor) -> Tensor:
    """16-bit signed little-endian samples; what is outside [-1, 1] is clipped."""
    return np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2")


def to_pcm16(samples: Tensor) -> bytes:
    """The same as bytes."""
    return pcm16_of(samples).tobytes()


def wav_file(pcm16: bytes, sample_rate_hz: int) -> bytes:
    """A mono 16-bit WAV file; zero samples make a valid empty one."""
    return wav_header(sample_rate_hz, len(pcm16)) + pcm16


def wav_header(sample_rate_hz: int, data_bytes: int | None = None) -> bytes:
    """What a mono 16-bit WAV file begins with.

    Without a length it states the largest, as is the custom in streams: readers take what
    comes until the end.
    """
    length = _UNKNOWN_BYTES if data_bytes is None else data_bytes
    return _WAV_HEADER.pack(
        b"RIFF", _WAV_HEADER.size - 8 + length, b"WAVE",
        b"fmt ", 16, 1, 1, sample_rate_hz, sample_rate_hz * SAMPLE_BYTES, SAMPLE_BYTES, 16,
        b"data", length,
    )  # fmt: skip


def to_base64(data: bytes | bytearray) -> str:
    """Base64 text without line breaks."""
    return pybase64.b64encode_as_string(data)


class Base64Stream:
    """Base64 pieces that decode to the whole when they are joined as text.

    Some clients join before they decode, so every piece but the last encodes a
    multiple of `BASE64_GROUP_BYTES`; what is left waits for the next one.
    """

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> str:
        """The next piece; "" when there is not enough for one."""
        data = self._rest + data
        whole = len(data) - len(data) % BASE64_GROUP_BYTES
        self._rest = data[whole:]
        return to_base64(data[:whole])

    def flush(self) -> str:
        """The last piece; "" when nothing is left."""
        rest, self._rest = self._rest, b""
        return to_base64(rest)
