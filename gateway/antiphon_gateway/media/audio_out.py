"""Converts audio for clients. Float32 samples become 16-bit samples, WAV files, or base64 pieces
that can be concatenated.
"""

from __future__ import annotations

import struct

import numpy as np
import pybase64

from antiphon.values.chunk import Tensor

SAMPLE_BYTES = 2
BASE64_GROUP_BYTES = 6
"""A number of bytes that is a multiple of both the sample size (2 bytes) and the size of a base64
group (3 bytes).
"""

_WAV_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_UNKNOWN_BYTES = (1 << 32) - 1 - _WAV_HEADER.size


def pcm16_of(samples: Tensor) -> Tensor:
    """Return 16-bit signed little-endian samples. Values outside [-1, 1] are clipped."""
    return np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2")


def to_pcm16(samples: Tensor) -> bytes:
    """Return 16-bit signed little-endian samples as bytes. Values outside [-1, 1] are clipped."""
    return pcm16_of(samples).tobytes()


def wav_file(pcm16: bytes, sample_rate_hz: int) -> bytes:
    """Return a mono 16-bit WAV file. If there are no samples, the result is a valid empty file."""
    return wav_header(sample_rate_hz, len(pcm16)) + pcm16


def wav_header(sample_rate_hz: int, data_bytes: int | None = None) -> bytes:
    """Return the header of a mono 16-bit WAV file.

    If no length is given, the header contains the largest possible length, which is common for
    streams. Readers then read until the data ends.
    """
    length = _UNKNOWN_BYTES if data_bytes is None else data_bytes
    return _WAV_HEADER.pack(
        b"RIFF", _WAV_HEADER.size - 8 + length, b"WAVE",
        b"fmt ", 16, 1, 1, sample_rate_hz, sample_rate_hz * SAMPLE_BYTES, SAMPLE_BYTES, 16,
        b"data", length,
    )  # fmt: skip


def to_base64(data: bytes | bytearray) -> str:
    """Return base64 text without line breaks."""
    return pybase64.b64encode_as_string(data)


class Base64Stream:
    """Base64 pieces that can be concatenated as text before they are decoded.

    Some clients concatenate all pieces and then decode the result. For this reason, every piece
    except the last encodes a multiple of `BASE64_GROUP_BYTES` bytes. Any remaining bytes are kept
    for the next piece.
    """

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> str:
        """Return the next piece. If there isn't enough data for a piece, returns an empty
        string.
        """
        data = self._rest + data
        whole = len(data) - len(data) % BASE64_GROUP_BYTES
        self._rest = data[whole:]
        return to_base64(data[:whole])

    def flush(self) -> str:
        """Return the last piece. If there is no data left, returns an empty string."""
        rest, self._rest = self._rest, b""
        return to_base64(rest)
