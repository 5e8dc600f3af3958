"""G.711, which represents 16-bit samples as bytes, using mu-law or A-law. It is implemented with
tables.

Each byte contains a sign, three bits for the segment (the octave of the amplitude) and four bits
for the step within that segment. Mu-law uses 14 bits of a sample, and A-law uses 13.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RATE_HZ = 8_000
"""The sample rate of telephones."""

_SAMPLES = np.arange(-(1 << 15), 1 << 15)
_BYTES = np.arange(256)
_MU_BIAS, _MU_LOUDEST = 33, 8158


@dataclass(frozen=True, slots=True, eq=False)
class Companding:
    """One of the two companding laws."""

    name: str
    _decoded: npt.NDArray[np.int16]
    _encoded: npt.NDArray[np.uint8]

    def decode(self, data: bytes) -> bytes:
        """Decode bytes to 16-bit little-endian samples."""
        return self._decoded[np.frombuffer(data, np.uint8)].astype("<i2").tobytes()

    def encode(self, pcm16: npt.NDArray[np.int16]) -> bytes:
        """Encode 16-bit samples."""
        return self._encoded[pcm16.astype(np.int32) + (1 << 15)].tobytes()


def _segments(magnitudes: npt.NDArray[np.int64], first_bits: int) -> npt.NDArray[np.int64]:
    """Return the segment index for each number. There are eight segments, and the first one
    contains numbers of up to `first_bits` bits.
    """
    ends = (1 << np.arange(first_bits, first_bits + 8)) - 1
    return np.searchsorted(ends, magnitudes)


def _mu_law() -> Companding:
    flipped = ~_BYTES & 0xFF
    segment, step = flipped >> 4 & 7, flipped & 15
    loud = ((step << 3) + (_MU_BIAS << 2) << segment) - (_MU_BIAS << 2)
    decoded = np.where(flipped & 0x80, -loud, loud)
    wide = _SAMPLES >> 2
    biased = np.minimum(np.abs(wide), _MU_LOUDEST) + _MU_BIAS
    segment = _segments(biased, 6)
    code = segment << 4 | biased >> segment + 1 & 15
    encoded = code ^ np.where(wide < 0, 0x7F, 0xFF)
    return Companding("mu-law", decoded.astype(np.int16), encoded.astype(np.uint8))


def _a_law() -> Companding:
    flipped = _BYTES ^ 0x55
    segment, step = flipped >> 4 & 7, flipped & 15
    loud = (step << 4) + 8 + np.where(segment, 0x100, 0) << np.maximum(segment - 1, 0)
    decoded = np.where(flipped & 0x80, loud, -loud)
    wide = _SAMPLES >> 3
    magnitude = np.where(wide < 0, ~wide, wide)
    segment = _segments(magnitude, 5)
    code = segment << 4 | magnitude >> np.maximum(segment, 1) & 15
    encoded = code ^ np.where(wide < 0, 0x55, 0xD5)
    return Companding("A-law", decoded.astype(np.int16), encoded.astype(np.uint8))


MU_LAW = _mu_law()
A_LAW = _a_law()
