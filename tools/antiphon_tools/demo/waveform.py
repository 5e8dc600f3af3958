"""Draws a waveform with two rows of text.

The blocks in the upper row extend upwards from the center line. The lower row is displayed in
reverse video. A block with a height of `8 - n` eighths therefore leaves `n` eighths in the text
color, and these extend downwards from the center line.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BLOCKS = " ▁▂▃▄▅▆▇█"
FULL = len(BLOCKS) - 1
SHORTEST_COLUMN_S = 0.04
QUIETEST_FULL_SCALE = 0.05
"""The minimum amplitude that is drawn at full height, relative to the loudest possible sample.
Quieter audio is not amplified any further.
"""


def from_pcm16(pcm16: bytes | bytearray) -> npt.NDArray[np.float32]:
    """Convert 16-bit little-endian samples to float32 values from -1 to 1. The result is a copy."""
    return np.frombuffer(pcm16, "<i2").astype(np.float32) / np.float32(32768)


def waveform_rows(
    samples: npt.NDArray[np.float32], sample_rate_hz: int, width: int
) -> tuple[str, str]:
    """Return the upper and the lower row, which have the same length of up to `width` characters.

    A column represents 40 ms. This duration is doubled until the waveform fits.
    """
    if not len(samples):
        return "", ""
    step = round(SHORTEST_COLUMN_S * sample_rate_hz)
    while len(samples) > step * width:
        step *= 2
    columns = np.arange(0, len(samples), step)
    highest = np.maximum(np.maximum.reduceat(samples, columns), 0)
    lowest = np.maximum(-np.minimum.reduceat(samples, columns), 0)
    scale = FULL / max(QUIETEST_FULL_SCALE, float(np.abs(samples).max()))
    up = np.rint(highest * scale).astype(int)
    down = np.rint(lowest * scale).astype(int)
    return "".join(BLOCKS[n] for n in up), "".join(BLOCKS[FULL - n] for n in down)
