"""A recording to ask with: a tone that rises."""

from __future__ import annotations

import array
import io
import math
import sys
import wave

SECONDS = 2.0
SAMPLE_RATE_HZ = 16_000
LOW_HZ, HIGH_HZ = 200.0, 2_000.0
LOUDNESS = 0.3


def sweep_wav() -> bytes:
    """A WAV file, 16-bit mono, in which the frequency rises evenly from low to high."""
    count = round(SECONDS * SAMPLE_RATE_HZ)
    samples = array.array("h", (_sample(index / SAMPLE_RATE_HZ) for index in range(count)))
    if sys.byteorder == "big":
        samples.byteswap()
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(SAMPLE_RATE_HZ)
        writer.writeframes(samples.tobytes())
    return file.getvalue()


def _sample(time_s: float) -> int:
    """The sample at a time: the phase is the integral of the frequency."""
    cycles = LOW_HZ * time_s + (HIGH_HZ - LOW_HZ) / SECONDS * time_s**2 / 2
    return round(LOUDNESS * 32767 * math.sin(2 * math.pi * cycles))
