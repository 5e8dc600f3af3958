"""Standard normal numbers that depend only on a key, a step and their index."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_WORDS_OF_A_STEP = 1 << 64
_FRACTION_BITS = 53
_SHIFT = np.uint64(64 - _FRACTION_BITS)


def normal_draws(key: int, step: int, count: int) -> npt.NDArray[np.float32]:
    """Return the first `count` numbers of a step, as float32 [count]. The key has 128 bits.

    A larger `count` adds numbers without changing the first ones. Numbers for different keys or
    steps are independent. They are computed with the Box-Muller method from Philox words in
    float64, so they don't depend on the version of numpy.
    """
    words = np.random.Philox(key=key, counter=step * _WORDS_OF_A_STEP).random_raw(count + count % 2)
    parts = (words >> _SHIFT).astype(np.float64) * 2.0**-_FRACTION_BITS
    radii = np.sqrt(-2 * np.log1p(-parts[::2]))
    angles = 2 * np.pi * parts[1::2]
    pairs = np.stack((radii * np.cos(angles), radii * np.sin(angles)), 1)
    return pairs.reshape(-1)[:count].astype(np.float32)
