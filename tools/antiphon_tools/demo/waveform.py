"""A waveform in two rows of text.

The upper row's blocks grow from the middle line up. The lower row is to be shown in
reverse video: there a block that is `8 - n` eighths high leaves `n` eighths of the
text's colour, hanging from the middle line down.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BLOCKS = " ▁▂▃▄▅▆▇█"
FULL = len(BLOCKS) - 1
SHORTEST_COLUMN_S = 0.04
QUIETEST_FULL_SCALE = 0.05
"""What is quieter than this is not drawn any larger; 1 is the loudest sample there is."""


def from_pcm16(pcm16: bytes | bytearray) -> npt.NDArray[np.float32]:
    """16-bit little-endian samples as float32 from -1 to 1; a copy."""
    return np.frombuffer(pcm16, "<i2").astype(np.float32) / np.float32(32768)


def waveform_rows(
    samples: npt.NDArray[np.float32], sample_rate_hz: int, width: int
) -> tuple[str, str]:
    """The upper and the lower row, equally long and at most `width` characters.

    A column stands for 40 ms, or as often twice as much as it takes to fit.
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
