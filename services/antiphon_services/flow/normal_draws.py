"""Standard normal numbers that depend on a key, a step and their place alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_WORDS_OF_A_STEP = 1 << 64
_FRACTION_BITS = 53
_SHIFT = np.uint64(64 - _FRACTION_BITS)


def normal_draws(key: int, step: int, count: int) -> npt.NDArray[np.float32]:
    """float32 [count]: the numbers 0 to `count` - 1 of a step, under a key of 128 bits.

    More numbers of the same step begin with the same ones. Two calls with another key or step
    share nothing. The method is that of Box and Muller over the words of Philox, in float64, so
    that no release of numpy changes the numbers.
    """
    words = np.random.Philox(key=key, counter=step * _WORDS_OF_A_STEP).random_raw(count + count % 2)
    parts = (words >> _SHIFT).astype(np.float64) * 2.0**-_FRACTION_BITS
    radii = np.sqrt(-2 * np.log1p(-parts[::2]))
    angles = 2 * np.pi * parts[1::2]
    pairs = np.stack((radii * np.cos(angles), radii * np.sin(angles)), 1)
    return pairs.reshape(-1)[:count].astype(np.float32)
