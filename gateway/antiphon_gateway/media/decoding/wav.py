"""WAV files. The header is parsed here, while the samples after it are converted by libsndfile.

libsndfile's own parser would also accept compressed encodings, whose cost isn't proportional to the
file size. In addition, it trusts the lengths in a header, although programs that write to a pipe
leave them at 0 or 0xFFFFFFFF.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import soundfile

from antiphon.values.chunk import Tensor
from antiphon_gateway.media.decoding.bounds import RejectedRecording, check_frames, check_sound
from antiphon_gateway.media.decoding.mono import mono_blocks

_PCM, _FLOAT, _ALAW, _ULAW, _EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
# libsndfile's names for each combination of the tag in the header and the number of bits per
# sample.
_SUBTYPES = {
    (_PCM, 8): "PCM_U8",
    (_PCM, 16): "PCM_16",
    (_PCM, 24): "PCM_24",
    (_PCM, 32): "PCM_32",
    (_FLOAT, 32): "FLOAT",
    (_FLOAT, 64): "DOUBLE",
    (_ALAW, 8): "ALAW",
    (_ULAW, 8): "ULAW",
}
_KINDS = {b"RIFF": "<", b"RIFX": ">", b"RF64": "<"}
_UNKNOWN_BYTES = 0xFFFF_FFFF
SAMPLE_BYTES = 4
_MAX_CHUNKS = 1024
"""The maximum number of chunks before the chunk with the samples."""


@dataclass(frozen=True, slots=True)
class WavHeader:
    """The content of a file's chunks. Its samples are the bytes from `start` to `stop`."""

    subtype: str
    channels: int
    rate_hz: int
    endian: str
    frame_bytes: int
    start: int
    stop: int

    @property
    def frames(self) -> int:
        """The number of complete frames."""
        return (self.stop - self.start) // self.frame_bytes

    def cost_bytes(self, rate_hz: int) -> int:
        """Return how many bytes are read or written when decoding to `rate_hz`, whichever is
        larger.
        """
        written = self.frames * rate_hz // self.rate_hz * SAMPLE_BYTES
        return max(self.stop - self.start, written)


def is_wav(data: bytes) -> bool:
    """Return whether a file begins like a WAV file."""
    return data[:4] in _KINDS and data[8:12] == b"WAVE"


def read_header(data: bytes) -> WavHeader:
    """Return the header of a file for which `is_wav` is true. Raises `RejectedRecording` if the
    header is invalid.
    """
    order = _KINDS[data[:4]]
    described: tuple[str, int, int, int] | None = None
    long_bytes = 0
    for kind, start, size in _chunks(data, order):
        if kind == b"fmt ":
            described = _described(data[start : start + size], order)
        elif kind == b"ds64" and size >= 16:
            (long_bytes,) = struct.unpack_from("<Q", data, start + 8)
        elif kind == b"data":
            if described is None:
                raise RejectedRecording(
                    "is not a valid WAV file: the samples come before the format"
                )
            subtype, channels, rate_hz, frame_bytes = described
            known = long_bytes if size == _UNKNOWN_BYTES and long_bytes else size
            stop = min(start + known, len(data))
            if known in (0, _UNKNOWN_BYTES) and not _is_complete(data, order):
                stop = len(data)
            endian = "LITTLE" if order == "<" else "BIG"
            return WavHeader(subtype, channels, rate_hz, endian, frame_bytes, start, stop)
    raise RejectedRecording("is not a valid WAV file: it has no samples")


def check_header(header: WavHeader, most_s: float) -> None:
    """Raise `RejectedRecording` if a recording exceeds a limit."""
    check_sound(header.channels, header.rate_hz)
    check_frames(header.frames, header.channels, header.rate_hz, most_s)


def decode_wav(data: bytes, header: WavHeader, rate_hz: int) -> Tensor:
    """Return the samples of a WAV file as mono float32 at `rate_hz`.

    Raises `RejectedRecording` if samples are NaN, infinite or far too loud.
    """
    with soundfile.SoundFile(
        io.BytesIO(memoryview(data)[header.start : header.stop]),
        samplerate=header.rate_hz,
        channels=header.channels,
        subtype=header.subtype,
        endian=header.endian,
        format="RAW",
    ) as file:
        return np.concatenate(tuple(mono_blocks(file, header.frames, rate_hz)))


def _chunks(data: bytes, order: str) -> Iterator[tuple[bytes, int, int]]:
    """Yield the type, the first byte and the declared size of each chunk."""
    at = 12
    for _ in range(_MAX_CHUNKS):
        if at + 8 > len(data):
            return
        kind, size = struct.unpack_from(f"{order}4sI", data, at)
        yield kind, at + 8, size
        at += 8 + size + size % 2


def _described(content: bytes, order: str) -> tuple[str, int, int, int]:
    """Return the subtype, the channels, the rate and the number of bytes in a frame. Raises
    `RejectedRecording` if they are invalid.
    """
    if len(content) < 16:
        raise RejectedRecording("is not a valid WAV file: the format is truncated")
    tag, channels, rate_hz, _, _, bits = struct.unpack_from(f"{order}HHIIHH", content)
    if tag == _EXTENSIBLE and len(content) >= 26:
        (tag,) = struct.unpack_from(f"{order}H", content, 24)
    width = -(-bits // 8) * 8
    if (subtype := _SUBTYPES.get((tag, width))) is None:
        raise RejectedRecording(
            f"is a WAV file with the encoding {tag:#06x} and {bits} bits, which is not "
            "supported; use PCM with 8 to 32 bits, float, A-law or mu-law"
        )
    return subtype, channels, rate_hz, channels * width // 8 or 1


def _is_complete(data: bytes, order: str) -> bool:
    """Return whether the declared size of the file matches its actual size."""
    (size,) = struct.unpack_from(f"{order}I", data, 4)
    return bool(size + 8 == len(data))
